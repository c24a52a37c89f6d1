"""``tunedb advise launches``."""

import json

import workdirs

from tunedb.storage.store import Store

TRACE = [
    [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1"]],
        ["Split", ["l1", "None", 64], [1, 0], ["l2", "l3"]],
        ["Bind", ["l2"], ["blockIdx.x"], []],
        ["Bind", ["l3"], ["threadIdx.x"], []],
    ],
    [],
]


def database(tmp_path, run):
    """Return a database with a record of a program for a GPU, and one for a processor."""
    records = [
        json.dumps([0, [TRACE, [0.5], workdirs.CUDA, workdirs.ARGS]]),
        json.dumps([0, [workdirs.trace(), [0.25], workdirs.LLVM, workdirs.ARGS]]),
    ]
    path = tmp_path / "x.db"
    run("import", "logs", workdirs.write(tmp_path / "log", records), "--db", path)
    return path


def test_launches_fills_in_missing_launches_once(tmp_path, run, run_json):
    path = database(tmp_path, run)
    assert run_json("advise", "launches", "--db", path, "--target", "llvm")["records"] == 0
    for filled, known in ((1, 0), (0, 1)):
        assert run_json("advise", "launches", "--db", path, "--workload", "1") == {
            **{"records": 1, "known": known, "filled": filled, "unknown": 0, "launches": filled}
        }
    with Store(path) as store:
        (launch,) = store.launches.for_record(1)
    assert (launch.block, launch.threads) == ((64, 1, 1), 64)
    assert run("advise", "launches", "--db", path).stdout.splitlines() == [
        "1 record of TVM's programs for GPUs; 1 had launches before",
        "0 records got 0 launches",
    ]
    assert "metal" in run("advise", "launches", "--target", "metal", "--db", path, code=3).stderr


def test_interrupted_run_reports_launches_filled_so_far(tmp_path, run, monkeypatch):
    path = database(tmp_path, run)

    def interrupt(*_, report, **__):
        report.filled = 7
        raise KeyboardInterrupt

    monkeypatch.setattr("tunedb.advisor.tvm_launches.fill_launches", interrupt)
    result = run("advise", "launches", "--db", path, "--json", code=130)
    assert json.loads(result.stdout)["filled"] == 7
    assert "the next run continues" in result.stderr
