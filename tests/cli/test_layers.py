"""``--layer``: databases of others below the own one."""

import pytest
from builders import OWN, make_measurement, sql
from checks import has
from test_apply import tune

from tunedb.records import Alias
from tunedb.storage.store import Store


@pytest.fixture
def team(tmp_path):
    """A database of others with workload 0 for both targets, and workload 1 for target 0."""
    path = tmp_path / "team.db"
    found = [make_measurement(0, (0.5,)), make_measurement(1, (0.25,))]
    found += [make_measurement(2, (0.125,), target=1), make_measurement(3, (2.0,), workload=1)]
    with Store(path) as store:
        store.records.add([*found, make_measurement(4, None, workload=2)], OWN)
    return path


@pytest.fixture
def mine(sqlite_file):
    """The own database, with workload 0 for target 0."""
    with Store(sqlite_file) as store:
        store.records.add([make_measurement(9, (1.0,))], OWN)
    return sqlite_file


def shown(rows):
    """Return workload, mean and layer of each row."""
    return [(row["workload"], row["mean"], row["layer"]) for row in rows]


def test_layers_add_missing_targets_and_workloads(run, run_json, mine, team):
    assert shown(run_json("--db", mine, "top")) == [("matmul_0", 1.0, None)]
    theirs = [("matmul_0", 0.125, str(team)), ("matmul_1", 2.0, str(team))]
    rows = run_json("--db", mine, "top", "--layer", team)
    assert shown(rows) == [("matmul_0", 1.0, None), *theirs]
    has(run("--db", mine, "top", "--layer", team).stdout, "layer", "team.db")
    assert "layer" not in run("--db", mine, "top").stdout


def test_top_of_one_workload_includes_layers(run, run_json, mine, team, tmp_path):
    rows = run_json("--db", mine, "top", "matmul_1", "--layer", team)
    assert shown(rows) == [("matmul_1", 2.0, str(team))]
    rows = run_json("--db", mine, "top", "matmul_0", "--layer", team, "-k", 5)
    assert shown(rows) == [("matmul_0", 1.0, None), ("matmul_0", 0.125, str(team))]
    # A number selects a workload of the own database.
    assert shown(run_json("--db", mine, "top", 1, "--layer", team)) == shown(rows)
    assert "no workload '2'" in run("--db", mine, "top", 2, "--layer", team, code=3).stderr
    # The first layer with the workload answers.
    other = tmp_path / "other.db"
    with Store(other) as store:
        store.records.add([make_measurement(0, (3.0,), workload=1)], OWN)
    rows = run_json("--db", mine, "top", "matmul_1", "--layer", other, "--layer", team)
    assert shown(rows) == [("matmul_1", 3.0, str(other))]


def test_top_selects_targets_of_own_database_and_layers(run, run_json, mine, team):
    def top(target):
        return shown(run_json("--db", mine, "top", "--layer", team, "--target", target))

    assert top(1) == [("matmul_0", 1.0, None), ("matmul_1", 2.0, str(team))]
    assert top('{"num-cores": 2}') == [("matmul_0", 0.125, str(team))]
    assert "cuda" in run("--db", mine, "top", "--layer", team, "--target", "cuda", code=3).stderr


def test_own_record_hides_layer_workload_with_equal_alias(run_json, mine, team):
    one = [Alias("link", "one")]
    for path, workload in ((mine, 0), (team, 1)):
        with Store(path) as store:
            store.workloads.add(make_measurement(workload=workload).program.workload, one)
    rows = run_json("--db", mine, "top", "--layer", team, "--target", 1)
    assert shown(rows) == [("matmul_0", 1.0, None)]


def test_top_reads_layers_of_configuration_file(run, run_json, mine, team, tmp_path):
    (tmp_path / "work" / "tunedb.toml").write_text('layers = ["../team.db"]')
    assert len(run_json("--db", mine, "top")) == 3
    # Sessions of layers are unknown, so their records are left out.
    assert len(run_json("--db", mine, "top", "--session-corrected")) == 1
    message = run("--db", mine, "top", "--session-corrected", "--layer", team, code=2).stderr
    assert "without --layer" in message


def test_a_missing_layer_is_left_out(run, mine, tmp_path):
    done = run("--db", mine, "top", "--layer", tmp_path / "gone.db")
    assert "gone.db: this layer is left out: no such file" in done.stderr
    assert "matmul_0" in done.stdout
    assert "mysql" in run("--db", mine, "top", "--layer", "mysql://x/y", code=2).stderr


def test_names_of_a_layer_are_escaped(run, mine, tmp_path):
    path = tmp_path / "evil.db"
    with Store(path) as store:
        store.records.add([make_measurement(0, (0.5,), workload=3)], OWN)
    sql(path, "UPDATE workload SET name = ?", "\x1b[31mred\x07")
    done = run("--db", mine, "top", "--layer", path)
    assert "red" in done.stdout and not {"\x1b", "\x07"} & set(done.output)


def test_apply_uses_missing_functions_of_a_layer(run, run_json, tuned, kernels, tmp_path):
    team, script = tmp_path / "team.db", tmp_path / "scheduled.py"
    tune(team, kernels, "twice", run_secs=(1e-6,))
    tune(team, kernels, "thrice", run_secs=(2e-3,))
    words = ("--db", tuned, "apply", kernels, "-o", script, "--layer", team)
    found = [(row["function"], row["mean"], row["layer"]) for row in run_json(*words)]
    assert found == [("thrice", 2e-3, str(team)), ("twice", 1e-3, None)]
    assert script.read_text().count("T.parallel(") == 2
    assert "team.db" in run(*words).stdout


def test_apply_uses_target_of_layer_if_own_database_has_none(
    run_json, sqlite_file, tuned, kernels, tmp_path
):
    script = tmp_path / "scheduled.py"
    rows = run_json("--db", sqlite_file, "apply", kernels, "-o", script, "--layer", tuned)
    assert [row["layer"] for row in rows] == [None, str(tuned)]
    assert {row["target"] for row in rows} == {"llvm x86-64-v2 2 cores"}
