"""``tunedb top``, ``workloads``, ``targets`` and ``history``."""

import json

import pytest
import workdirs
from builders import OWN, make_measurement

import tunedb
from tunedb.records import Session


def test_top_lists_fastest_records_of_a_workload(run, run_json, filled):
    rows = run_json("--db", filled, "top", "matmul", "--target", "llvm")
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert [row["mean"] for row in rows] == sorted(row["mean"] for row in rows)
    # Equal times come in the order of insertion.
    assert [row["id"] for row in rows] == [2, 3, 1]
    assert rows[0]["decisions"] == [[2, 32]]
    assert (rows[0]["minimum"], rows[0]["median"]) == (1e-3, (1e-3 + 1.1e-3) / 2)
    assert rows[0]["repeats"] == 2
    assert rows[0]["spread"] == pytest.approx(0.0673, abs=1e-3)
    assert rows[0]["source"] == "nightly"
    assert rows[0]["arguments"] == workdirs.ARGS
    assert "f32 128x64, 64" in run("--db", filled, "show", 1).stdout
    assert [r["id"] for r in run_json("--db", filled, "top", "matmul", "-k", 1)] == [2, 6, 7]


def test_top_ranks_each_target_separately(run, run_json, filled):
    rows = run_json("--db", filled, "top", "matmul")
    assert [(row["target_id"], row["rank"]) for row in rows] == [
        *((1, 1), (1, 2), (1, 3), (2, 1), (3, 1)),
    ]
    assert {row["target"] for row in rows} == {"llvm znver4 2 cores", "cuda sm_90", "none"}
    assert "within each target" in run("--db", filled, "top", "matmul").stderr
    assert "within" not in run("--db", filled, "top", "matmul", "--target", "cuda").stderr
    assert "within" not in run("--db", filled, "top", "matmul", "-q").stderr


def test_top_lists_best_record_of_each_workload_and_target(run_json, filled):
    rows = run_json("--db", filled, "top")
    assert [(row["workload"], row["target_id"], row["id"]) for row in rows] == [
        *(("matmul", 1, 2), ("matmul", 2, 6), ("matmul", 3, 7), ("softmax", 1, 5)),
    ]
    assert [row["id"] for row in run_json("--db", filled, "top", "-k", 2, "--target", "llvm")] == [
        *(2, 3, 5)
    ]


@pytest.mark.parametrize("words", ["matmul", "mat", "1"])
def test_top_finds_workload_by_name_prefix_and_id(words, run_json, filled):
    assert run_json("--db", filled, "top", words)[0]["workload_id"] == 1


def test_unknown_names_suggest_the_nearest(run, filled):
    assert "nearest: matmul" in run("--db", filled, "top", "matmull", code=3).stderr
    message = run("--db", filled, "top", "--target", "lvm", code=3).stderr
    assert "nearest: llvm" in message
    assert "2 (cuda sm_90)" in message
    assert "tunedb workloads" in run("--db", filled, "top", "zzzz", code=3).stderr
    run("--db", filled, "top", "--target", "{nonsense", code=2)
    run("--db", filled, "top", "-k", "0", code=2)


def test_several_workloads_of_a_name_need_an_id(run, run_json, sqlite_file, tmp_path):
    graphs = [workdirs.graph("C", i) for i in range(12)]
    records = [workdirs.record([1e-3 * (i + 1)], workload=i) for i in range(12)]
    run("--db", sqlite_file, "import", "logs", workdirs.write(tmp_path / "log", records, graphs))
    message = run("--db", sqlite_file, "top", "C", code=2).stderr
    assert "12 workloads" in message
    assert "1 (C), 2 (C)" in message
    assert "and 4 more" in message
    assert run_json("--db", sqlite_file, "top", "3")[0]["mean"] == 3e-3


def test_workloads_and_targets_count_their_records(run_json, filled):
    first, second = run_json("--db", filled, "workloads")
    assert (first["records"], first["failed"], first["targets"]) == (6, 1, 3)
    assert first["best"] == 5e-6
    assert first["tvm_version"] == "0.27.0"
    assert (second["name"], second["records"]) == ("softmax", 1)
    llvm, cuda, none = run_json("--db", filled, "targets")
    assert (llvm["records"], llvm["workloads"], llvm["config"]) == (5, 2, workdirs.LLVM)
    assert cuda["architecture"] == "sm_90"
    assert (none["kind"], none["config"], none["architecture"]) == ("none", None, None)


def test_history_lists_best_time_after_each_record(run, run_json, filled):
    rows = run_json("--db", filled, "history", "matmul", "--target", "llvm")
    assert [(row["step"], row["id"]) for row in rows] == [(1, 1), (2, 2), (3, 3)]
    assert [row["best"] for row in rows] == pytest.approx([3.15e-3, 1.05e-3, 1.05e-3])
    line = run("--db", filled, "history", "matmul", "--target", "llvm").stdout.splitlines()[1]
    assert "3.00x" in line
    assert "█▁▁" in line
    run("--db", filled, "history", code=2)
    run("--db", filled, "history", "nothing", code=3)


def import_day(run, path, folder, times):
    """Import a log of matmul as a source of its own: tile → milliseconds."""
    records = [workdirs.record([1e-3 * ms], tile=(2, tile)) for tile, ms in times.items()]
    log = workdirs.write(folder, records, [workdirs.graph("matmul")])
    run("--db", path, "import", "logs", log, "--source", folder.name)


@pytest.fixture
def two_days(run, sqlite_file, tmp_path):
    """Six programs on two days, the second 1.5 times slower; program 9 on the second only."""
    first = {n: 10 - n for n in range(6)}
    second = {n: 1.5 * ms for n, ms in first.items()} | {9: 6}
    for name, times in (("monday", first), ("tuesday", second)):
        import_day(run, sqlite_file, tmp_path / name, times)
    return sqlite_file


def test_top_ranks_by_session_corrected_time(run, run_json, two_days):
    run("--db", two_days, "sessions", "--update")
    # By raw time program 9 is behind program 5 of the first day; by corrected time it is first.
    plain = run_json("--db", two_days, "top", "matmul", "-k", 3)
    assert [row["mean"] for row in plain] == pytest.approx([5e-3, 6e-3, 6e-3])
    assert "session_corrected" not in plain[0]
    rows = run_json("--db", two_days, "top", "matmul", "-k", 3, "--session-corrected")
    assert [row["id"] for row in rows] == [13, 6, 12]
    assert [row["session_corrected"] for row in rows] == pytest.approx([4e-3, 5e-3, 5e-3])
    assert [row["mean"] for row in rows] == pytest.approx([6e-3, 5e-3, 7.5e-3])
    assert [row["factor"] for row in rows] == pytest.approx([1.5, 1.0, 1.5])
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert {row["machine"] for row in rows} == {0}
    result = run("--db", two_days, "top", "matmul", "--session-corrected")
    assert result.stderr == ""
    assert "4.000 ms" in result.stdout
    # TVM gets the order of raw times.
    with tunedb.open(two_days) as store:
        assert store.answers.best_ids([1], [1], 3) == [6, 5, 13]


def test_sessions_without_factor_are_reported(run, run_json, two_days):
    result = run("--db", two_days, "top", "--session-corrected")
    assert "2 of 2 sessions have no factor yet" in result.stderr
    assert "tunedb sessions --update" in result.stderr
    rows = run_json("--db", two_days, "top", "matmul", "--session-corrected")
    assert [row["session_corrected"] for row in rows] == [row["mean"] for row in rows]


def test_one_session_has_nothing_to_correct(run, filled):
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


def session(key, **threads):
    """Return a session that may state its threads."""
    return Session(key, 0, json.dumps({"cpu": "x", **threads}).encode())


def test_top_shows_numbers_of_threads_only_if_they_differ(run, run_json, tmp_path):
    path = tmp_path / "threads.db"
    pair = session("pair", threads={"count": 2, "pinned": False})
    with tunedb.open(path) as store:
        store.records.add([make_measurement(0, (2e-3,), session=pair)], OWN)
    assert "threads" not in run("--db", path, "top").stdout
    with tunedb.open(path) as store:
        store.records.add([make_measurement(1, (1e-3,), session=session("silent"))], OWN)
    rows = run_json("--db", path, "top", "-k", 2)
    assert [row["threads"] for row in rows] == [None, 2]
    done = run("--db", path, "top", "-k", 2)
    assert "threads" in done.stdout
    assert "Different numbers of TVM's threads: their times are not comparable." in done.stderr
    assert "Different" not in run("--db", path, "top", "-k", 1).stderr


def test_top_rejects_network_without_a_tuning_run(run, filled):
    result = run("--db", filled, "top", "--network", code=3)
    assert "no network was tuned yet; tune one: tunedb tune network.onnx" in result.stderr
    result = run("--db", filled, "top", "matmul", "--network", "net", code=2)
    assert "--network shows a whole run" in result.stderr
