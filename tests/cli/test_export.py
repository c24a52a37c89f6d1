"""``tunedb export``, and that nothing is lost on the way through it."""

import json

import workdirs

import tunedb


def contents(path):
    with tunedb.open(path, create=False, read_only=True) as store:
        return workdirs.digests(store)


def lines(folder, name="database_tuning_record.json"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_import_top_show_export_import(run, run_json, log, tmp_path):
    first, second, out = tmp_path / "first.db", tmp_path / "second.db", tmp_path / "out"
    run("--db", first, "import", "logs", log)
    best = run_json("--db", first, "top", "matmul", "--target", "llvm")[0]
    assert run_json("--db", first, "show", best["id"])["mean"] == best["mean"]
    report = run_json("--db", first, "export", out)
    assert report["records"] == 7
    assert report["left_out"] == {}
    assert report["directories"] == [str(out)]
    run("--db", second, "import", "logs", out)
    assert contents(second) == contents(first)
    assert len(contents(first)) == 7
    assert lines(out) == lines(log)
    # And once more: the export of the copy is the export.
    again = tmp_path / "again"
    run("--db", second, "export", again)
    for file in out.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_what_is_left_out_is_told(run, run_json, sqlite_file, tmp_path):
    own = workdirs.write(tmp_path / "own", [workdirs.record([1e-3]), workdirs.record([2e-3])])
    foreign = workdirs.write(tmp_path / "foreign", [workdirs.record([3e-3])])
    run("--db", sqlite_file, "import", "logs", own)
    run("--db", sqlite_file, "import", "logs", foreign, "--trust", "foreign")
    with tunedb.open(sqlite_file) as store:
        store.retract([1], "measured under load")
    report = run_json("--db", sqlite_file, "export", tmp_path / "out")
    assert report["records"] == 1
    assert report["left_out"] == {"retracted": 1, "foreign source": 1}
    text = run("--db", sqlite_file, "export", tmp_path / "out2").stdout
    assert "left out: foreign source" in text
    assert "left out: retracted" in text


def test_selection(run_json, filled, tmp_path):
    report = run_json("--db", filled, "export", tmp_path / "cuda", "--target", "cuda")
    assert report["records"] == 1
    assert lines(tmp_path / "cuda")[0][1][2] == workdirs.CUDA
    report = run_json("--db", filled, "export", tmp_path / "softmax", "--workload", "softmax")
    assert (report["records"], report["workloads"]) == (1, 1)


def test_force(run, filled, tmp_path):
    out = tmp_path / "out"
    run("--db", filled, "export", out)
    before = (out / "database_tuning_record.json").read_bytes()
    result = run("--db", filled, "export", out, "--target", "cuda", code=2)
    assert "--force" in result.stderr
    assert (out / "database_tuning_record.json").read_bytes() == before
    run("--db", filled, "export", out, "--target", "cuda", "--force")
    assert len(lines(out)) == 1
    assert sorted(path.name for path in out.iterdir()) == [
        "database_tuning_record.json",
        "database_workload.json",
    ]


def test_nothing_to_export(run, filled, sqlite_file, tmp_path):
    run("--db", sqlite_file, "export", tmp_path / "out", code=3)
    run("--db", filled, "export", tmp_path / "out", "--target", "hexagon", code=3)
    run("--db", filled, "export", tmp_path / "out", "--workload", "conv", code=3)
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written(run, filled, tmp_path):
    (tmp_path / "file").write_text("")
    result = run("--db", filled, "export", tmp_path / "file" / "out", code=1)
    assert result.stderr.startswith("Error: ")
    run("--db", filled, "export", tmp_path / "file", code=2)
    run("--db", filled, "export", tmp_path / "out", "--format", "csv", code=2)
