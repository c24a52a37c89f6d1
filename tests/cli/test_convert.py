"""``tunedb convert``."""

import json

KEY = json.dumps(["matmul_layer", 8, 4, 16])
STEPS = [["FU", 2, [0, 1]], ["AN", 2, 0, 3], ["SP", 2, 1, 4, [2], 1]]


def line(key, steps):
    """Return a line of auto_scheduler."""
    hardware = [4, 64, 64, 0, 0, 0, 0, 0]
    task = [key, "llvm -keys=cpu", hardware, "", 0, []]
    return {"i": [task, [[], steps]], "r": [[0.25], 0, 1.0, 1_700_000_000], "v": "v0.6"}


def test_convert_counts_records_by_workload_and_explains_refused_ones(run, tmp_path):
    log, database = tmp_path / "log.json", tmp_path / "tune.db"
    lines = [line(KEY, STEPS), line(KEY, [["CI", 9]]), line('["mystery"]', [])]
    lines.append(line('["not chosen"]', []))
    log.write_text("".join(json.dumps(each) + "\n" for each in lines))
    run("--db", database, "import", "logs", log)
    chosen = ("--workload", "1", "--workload", "mystery")
    done = run("--db", database, "convert", "--json", "--workers", 1, *chosen)
    reason = "matmul_layer: step 0 (CI): stage 9 of 3"
    assert json.loads(done.stdout) == [
        {
            **{"workload_id": 1, "workload": "matmul_layer", "read": 2, "replayed": 1, "known": 0},
            **{"undefined": 0, "refused": 1, "reasons": {reason: 1}},
            "definitions": {"matmul_layer": 1},
        },
        {
            **{"workload_id": 2, "workload": "mystery", "read": 1, "replayed": 0, "known": 0},
            **{"undefined": 1, "refused": 0, "reasons": {}, "definitions": {}},
        },
    ]
    assert "1 record converted in " in done.stderr
    assert f"1 record refused: {reason}" in done.stderr
    shown = run("--db", database, "show", 5).stdout
    assert "replayed from record 1 of workload 1" in shown
    assert "5" in run("--db", database, "top", "4").stdout
