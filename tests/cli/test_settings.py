"""Options, environment and ``tunedb.toml``; ``tunedb plugins``; completion."""

import importlib.metadata
import json

import pytest
from builders import EntryPoint
from checks import row_has

from tunedb.formats import base
from tunedb.plugins.metaschedule import compat


def first(run_json, *arguments, **kwargs):
    """Return the name of the first workload."""
    return run_json(*arguments, "workloads", **kwargs)[0]["name"]


def test_settings_come_from_option_environment_and_file(
    run, run_json, filled, tmp_path, monkeypatch
):
    """The later ``--db`` overrides the earlier, both the environment, and that the file."""
    other = tmp_path / "other.db"
    run("db", "init", other)
    assert first(run_json, "--db", filled) == "matmul"
    assert run_json("--db", other, "workloads", "--db", filled)[0]["name"] == "matmul"
    assert run_json("--db", other, "workloads") == []
    for words in (("db", "--db", filled, "info"), ("--db", other, "db", "info", filled)):
        assert run_json(*words)["location"] == str(filled)
    (tmp_path / "tunedb.toml").write_text('url = "filled.db"\n')
    assert first(run_json) == "matmul"
    monkeypatch.setenv("TUNEDB_URL", str(tmp_path / "missing.db"))
    assert "TUNEDB_URL" in run("workloads", code=3).stderr
    assert first(run_json, "--db", filled) == "matmul"
    monkeypatch.setenv("TUNEDB_URL", "")
    assert first(run_json) == "matmul"
    (tmp_path / "tunedb.toml").write_text("uri = 'x'\n")
    assert "unknown key 'uri'" in run("top", code=2).stderr
    (tmp_path / "tunedb.toml").write_text("url =\n")
    assert "not TOML" in run("top", code=1).stderr


@pytest.fixture
def entries(monkeypatch):
    """A list of entry points of other packages, beside those of tunedb."""
    own = importlib.metadata.entry_points()
    added = []

    def entry_points(group):
        return [*own.select(group=group), *(added if group == base.GROUP else ())]

    for module in ("tunedb.cli.plugins", "tunedb.extensions"):
        monkeypatch.setattr(f"{module}.entry_points", entry_points)
    base.load_formats.cache_clear()
    yield added
    base.load_formats.cache_clear()


def test_plugins_lists_formats_feature_sets_and_tvm(run, run_json, monkeypatch):
    everything = run_json("plugins")
    rows = {row["name"]: row for row in everything if row["kind"] == "log format"}
    of_tvm = ["ansor", "autotvm", "metaschedule"]
    of_kernels = ["cltune", "kernel-tuner", "ktt", "ktt-csv", "ktt-xml", "ncu", "nvprof"]
    of_kernels += ["t1", "t4", "triton"]
    assert list(rows) == sorted([*of_tvm, "metaschedule-sqlite", *of_kernels])
    (tvm,) = [row for row in everything if row["kind"] == "TVM"]
    assert tvm["package"].startswith("apache-tvm ")
    everything.remove(tvm)
    assert all(row["loads"] and row["package"].startswith("tunedb ") for row in everything)
    assert rows["metaschedule"]["entry_point"] == "tunedb.formats.metaschedule:MetaScheduleFormat"
    assert {row["reads"] for row in rows.values()} == {"lines", "whole files"}
    assert [name for name, row in rows.items() if row["reads"] == "lines"] == of_tvm
    assert [name for name, row in rows.items() if row["exports"]] == [*of_tvm, "t4"]
    sets = {row["name"]: row for row in everything if row["kind"] == "feature set"}
    assert list(sets) == sorted(sets) and {"steps", "tunedb.scheduled"} <= set(sets)
    assert (sets["steps"]["needs"], sets["steps"]["reads"]) == ("steps", None)
    # No row has a reason, so the table has no column for it.
    assert "reason" not in run("plugins").stdout
    # An older TVM lacks something.
    monkeypatch.setattr(compat, "release", lambda: compat.RELEASES[0, 25])
    (row,) = [row for row in run_json("plugins") if row["kind"] == "TVM"]
    assert row["loads"] and "graphs of other releases" in row["reason"]


def test_a_plugin_that_fails_is_reported_and_stops_nothing(run, entries, log, sqlite_file):
    entries.append(EntryPoint("broken", SystemError("no \x1b[2J such library")))
    rows = {row["name"]: row for row in json.loads(run("plugins", "--json", code=1).stdout)}
    reason = "SystemError: no \x1b[2J such library"
    row_has(rows.pop("broken"), loads=False, reads=None, exports=None, reason=reason)
    assert all(row["loads"] for row in rows.values())
    base.load_formats.cache_clear()
    text = run("plugins", code=1)
    assert "\x1b" not in text.output and "no \\x1b[2J such library" in text.stdout
    base.load_formats.cache_clear()
    message = run("--db", sqlite_file, "import", "logs", log).stderr
    assert "Warning: log format broken" in message and "\x1b" not in message


def test_environment_disables_plugins_of_other_packages(run_json, entries, monkeypatch):
    entries.append(EntryPoint("broken", ImportError("x")))
    monkeypatch.setenv("TUNEDB_PLUGINS", "")
    rows = run_json("plugins")
    (broken,) = [row for row in rows if row["name"] == "broken"]
    row_has(broken, loads=None, reason="disabled by TUNEDB_PLUGINS")
    assert {row["loads"] for row in rows if row is not broken} == {True}


def test_completion_prints_script_of_each_shell(run):
    for shell in ("bash", "zsh", "fish"):
        assert "_TUNEDB_COMPLETE" in run("completion", shell).stdout
    run("completion", "tcsh", code=2)


def complete(run, words, number):
    """Return the completions of the word with a number."""
    words = {"COMP_WORDS": words, "COMP_CWORD": str(number)}
    result = run(prog_name="tunedb", env={"_TUNEDB_COMPLETE": "bash_complete", **words})
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


def test_completion_suggests_commands_options_and_names(run, filled, monkeypatch, tmp_path):
    assert complete(run, "tunedb work", 1) == ["workloads"]
    assert "--target" in complete(run, "tunedb top --", 2)
    monkeypatch.setenv("TUNEDB_URL", str(filled))
    assert complete(run, "tunedb top m", 2) == ["matmul"]
    assert complete(run, "tunedb top ", 2) == ["matmul", "softmax", "1", "2"]
    assert complete(run, "tunedb history so", 2) == ["softmax"]
    assert complete(run, "tunedb top --target c", 3) == ["cuda"]
    assert complete(run, "tunedb export x --workload s", 4) == ["softmax"]
    assert complete(run, "tunedb export --format a", 3) == ["ansor", "arrow", "autotvm"]
    monkeypatch.setenv("TUNEDB_URL", str(tmp_path / "missing.db"))
    assert complete(run, "tunedb top ", 2) == []
    assert complete(run, f"tunedb --db {filled} top m", 4) == ["matmul"]
    assert complete(run, f"tunedb top --db {filled} m", 4) == ["matmul"]
    assert complete(run, f"tunedb --db {filled} trust ni", 4) == ["nightly"]
