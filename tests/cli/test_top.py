"""``tunedb top``, ``workloads``, ``targets`` and ``history``."""

import json

import pytest
import workdirs
from builders import OWN, make_measurement
from checks import has, row_has

import tunedb
from tunedb.records import Session


def test_top_lists_fastest_records_of_a_workload(run, run_json, filled):
    rows = run_json("--db", filled, "top", "matmul", "--target", "llvm")
    # Equal times come in the order of insertion.
    assert [(row["rank"], row["id"]) for row in rows] == [(1, 2), (2, 3), (3, 1)]
    assert [row["mean"] for row in rows] == sorted(row["mean"] for row in rows)
    row_has(rows[0], decisions=[[2, 32]], minimum=1e-3, median=(1e-3 + 1.1e-3) / 2, repeats=2)
    row_has(rows[0], source="nightly", arguments=workdirs.ARGS)
    assert rows[0]["spread"] == pytest.approx(0.0673, abs=1e-3)
    assert [r["id"] for r in run_json("--db", filled, "top", "matmul", "-k", 1)] == [2, 6, 7]
    for words in ("mat", "1"):
        assert run_json("--db", filled, "top", words)[0]["workload_id"] == 1


def test_top_ranks_each_target_separately(run, run_json, filled):
    rows = run_json("--db", filled, "top", "matmul")
    ranks = [(row["target_id"], row["rank"]) for row in rows]
    assert ranks == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    assert {row["target"] for row in rows} == {"llvm znver4 2 cores", "cuda sm_90", "none"}
    assert "within each target" in run("--db", filled, "top", "matmul").stderr
    for options in (["--target", "cuda"], ["-q"]):
        assert "within" not in run("--db", filled, "top", "matmul", *options).stderr
    # Without a workload it lists the best record of each one.
    rows = run_json("--db", filled, "top")
    assert [(row["workload"], row["target_id"], row["id"]) for row in rows] == [
        *(("matmul", 1, 2), ("matmul", 2, 6), ("matmul", 3, 7), ("softmax", 1, 5)),
    ]
    rows = run_json("--db", filled, "top", "-k", 2, "--target", "llvm")
    assert [row["id"] for row in rows] == [2, 3, 5]


def test_several_workloads_of_a_name_need_an_id(run, run_json, sqlite_file, tmp_path):
    graphs = [workdirs.graph("C", i) for i in range(12)]
    records = [workdirs.record([1e-3 * (i + 1)], workload=i) for i in range(12)]
    run("--db", sqlite_file, "import", "logs", workdirs.write(tmp_path / "log", records, graphs))
    message = run("--db", sqlite_file, "top", "C", code=2).stderr
    has(message, "12 workloads", "1 (C), 2 (C)", "and 4 more")
    assert run_json("--db", sqlite_file, "top", "3")[0]["mean"] == 3e-3


def test_workloads_and_targets_count_their_records(run_json, filled):
    first, second = run_json("--db", filled, "workloads")
    row_has(first, records=6, failed=1, targets=3, best=5e-6, tvm_version="0.27.0")
    row_has(second, name="softmax", records=1)
    llvm, cuda, none = run_json("--db", filled, "targets")
    row_has(llvm, records=5, workloads=2, config=workdirs.LLVM)
    assert cuda["architecture"] == "sm_90"
    row_has(none, kind="none", config=None, architecture=None)


def test_history_lists_best_time_after_each_record(run, run_json, filled):
    rows = run_json("--db", filled, "history", "matmul", "--target", "llvm")
    assert [(row["step"], row["id"]) for row in rows] == [(1, 1), (2, 2), (3, 3)]
    assert [row["best"] for row in rows] == pytest.approx([3.15e-3, 1.05e-3, 1.05e-3])
    table = run("--db", filled, "history", "matmul", "--target", "llvm").stdout
    has(table.splitlines()[1], "3.00x", "█▁▁")


def import_day(run, path, folder, times):
    """Import a log of matmul as a source of its own: tile → milliseconds."""
    records = [workdirs.record([1e-3 * ms], tile=(2, tile)) for tile, ms in times.items()]
    log = workdirs.write(folder, records, [workdirs.graph("matmul")])
    run("--db", path, "import", "logs", log, "--source", folder.name)


@pytest.fixture
def two_days(run, sqlite_file, tmp_path):
    """Six programs on two days, the second 1.5 times slower; program 9 on the second only."""
    first = {n: 10 - n for n in range(6)}
    import_day(run, sqlite_file, tmp_path / "monday", first)
    second = {n: 1.5 * ms for n, ms in first.items()} | {9: 6}
    import_day(run, sqlite_file, tmp_path / "tuesday", second)
    return sqlite_file


def test_top_ranks_by_session_corrected_time(run, run_json, two_days):
    run("--db", two_days, "sessions", "--update")
    # By raw time program 9 is behind program 5 of the first day; by corrected time it is first.
    plain = run_json("--db", two_days, "top", "matmul", "-k", 3)
    assert [row["mean"] for row in plain] == pytest.approx([5e-3, 6e-3, 6e-3])
    assert "session_corrected" not in plain[0]
    rows = run_json("--db", two_days, "top", "matmul", "-k", 3, "--session-corrected")
    numbers = [(row["id"], row["rank"], row["machine"]) for row in rows]
    assert numbers == [(13, 1, 0), (6, 2, 0), (12, 3, 0)]
    assert [row["session_corrected"] for row in rows] == pytest.approx([4e-3, 5e-3, 5e-3])
    assert [row["mean"] for row in rows] == pytest.approx([6e-3, 5e-3, 7.5e-3])
    assert [row["factor"] for row in rows] == pytest.approx([1.5, 1.0, 1.5])
    result = run("--db", two_days, "top", "matmul", "--session-corrected")
    assert result.stderr == "" and "4.000 ms" in result.stdout
    # TVM gets the order of raw times.
    with tunedb.open(two_days) as store:
        assert store.answers.best_ids([1], [1], 3) == [6, 5, 13]


def test_top_reports_sessions_without_factor_or_nothing_to_correct(run, run_json, two_days, filled):
    message = run("--db", two_days, "top", "--session-corrected").stderr
    has(message, "2 of 2 sessions have no factor yet", "tunedb sessions --update")
    rows = run_json("--db", two_days, "top", "matmul", "--session-corrected")
    assert [row["session_corrected"] for row in rows] == [row["mean"] for row in rows]
    result = run("--db", filled, "top", "--session-corrected", "--target", "llvm")
    assert result.stderr == "One session for each target: there is nothing to correct.\n"
    assert "corrected" in result.stdout


def test_top_ranks_each_machine_separately(run, run_json, two_days, tmp_path):
    """Ratios of times that scatter mean another machine."""
    scatter = [1.1, 3, 1.6, 0.5, 4, 0.2]
    other = {n: (10 - n) * scatter[n] for n in range(6)}
    import_day(run, two_days, tmp_path / "elsewhere", other)
    run("--db", two_days, "sessions", "--update")
    rows = run_json("--db", two_days, "top", "matmul", "-k", 2, "--session-corrected")
    assert [(row["machine"], row["rank"]) for row in rows] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [row["id"] for row in rows[2:]] == [19, 17]
    message = run("--db", two_days, "top", "matmul", "--session-corrected").stderr
    assert "Several machines: ranks count within each machine." in message


def test_top_shows_numbers_of_threads_only_if_they_differ(run, run_json, tmp_path):
    path = tmp_path / "threads.db"

    def add(number, **threads):
        fingerprint = json.dumps({"cpu": "x", **threads}).encode()
        session = Session(f"session-{number}", 0, fingerprint)
        measurement = make_measurement(number, (2e-3 - 1e-3 * number,), session=session)
        with tunedb.open(path) as store:
            store.records.add([measurement], OWN)

    add(0, threads={"count": 2, "pinned": False})
    assert "threads" not in run("--db", path, "top").stdout
    add(1)
    assert [row["threads"] for row in run_json("--db", path, "top", "-k", 2)] == [None, 2]
    done = run("--db", path, "top", "-k", 2)
    assert "threads" in done.stdout
    assert "Different numbers of TVM's threads: their times are not comparable." in done.stderr
    assert "Different" not in run("--db", path, "top", "-k", 1).stderr
