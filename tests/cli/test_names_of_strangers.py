"""Attack 1 from the victim's side: merge, top, apply and a layer."""

import shutil
from contextlib import closing

import pytest
from builders import copied, sql
from click.testing import CliRunner
from matmuls import commit, matmul
from tvm.script import tirx as T  # noqa: F401 - modules that are read name it

import tunedb
from tunedb.cli import main
from tunedb.exchange.bundle import new_manifest, write_bundle
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.plugins.metaschedule import Database, modules
from tunedb.storage.exchange_types import EVERYTHING

LLVM = {"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"}


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """A database with a record of a matmul of 64."""
    path = tmp_path_factory.mktemp("team") / "team.db"
    with closing(Database(path, target=LLVM)) as database:
        commit(database, matmul(64), [1e-6], tile=(16, 4))
    return path


@pytest.fixture(scope="module")
def victim_template(team):
    """The database that :func:`victim` copies."""
    path = team.with_name("tune.db")
    with closing(Database(path, target=LLVM)) as database:
        commit(database, matmul(256), [1e-3], tile=(64, 4))
    for words in (["merge", str(team)], ["trust", "2", "verified"]):
        assert CliRunner().invoke(main, ["--db", str(path), *words]).exit_code == 0
    return path


@pytest.fixture
def victim(victim_template, tmp_path):
    """A database with an own record of a matmul of 256, and a verified faster one of 64."""
    return copied(victim_template, tmp_path / "tune.db")


@pytest.fixture(scope="module")
def evil(team):
    """The team's database, which gives the names of the large matmul to the small one."""
    path = shutil.copyfile(team, team.with_name("evil.db"))
    large = matmul(256)
    insertion = "INSERT INTO workload_alias SELECT ?, ?, id, 1 FROM workload"
    for name in modules.aliases(large, str(large.script(show_meta=True))):
        sql(path, insertion, name.scheme, name.key)
    return path


@pytest.fixture(scope="module")
def bundle(evil):
    """A bundle of that database."""
    path = evil.with_name("evil.tunedb")
    with closing(DatabasePeer(evil, own=True)) as peer:
        write_bundle(path, peer.chunks(EVERYTHING), new_manifest(peer.store_key, EVERYTHING))
    return path


def model(tmp_path):
    """A file with the victim's matmul."""
    path = tmp_path / "model.py"
    path.write_text(matmul(256).script(show_meta=True) + "\n")
    return path


@pytest.mark.parametrize("believe", [False, True])
def test_attack_1_top_and_apply_keep_using_the_own_record(
    victim, bundle, tmp_path, run, run_json, believe
):
    before = run_json("--db", victim, "top")
    assert len(before) == 2
    words, code = (["--accept-trusted-names"], 0) if believe else ([], 1)
    (row,) = run_json("--db", victim, "merge", bundle, "--dry-run", *words, code=code)
    assert (row["new"], row["known"], row["aliases"]) == (0, 1, 4 if believe else 0)
    done = run("--db", victim, "merge", bundle, *words, code=code)
    assert ("4 aliases" if believe else "is trusted here") in done.stderr
    assert run_json("--db", victim, "top") == before
    out = tmp_path / "scheduled.py"
    (use,) = run_json("--db", victim, "apply", model(tmp_path), "-o", out)
    assert (use["record"], use["mean"]) == (1, 1e-3)
    assert "T.grid(64, 256, 4)" in out.read_text()


def test_attack_1_layer_with_false_names_serves_no_record(victim, evil, tmp_path, run, run_json):
    """The names of the layer belong to a matmul of another shape."""
    empty = tmp_path / "empty.db"
    tunedb.open(empty).close()
    out = tmp_path / "scheduled.py"
    done = run(
        *("--db", empty, "apply", model(tmp_path), "-o", out, "--layer", evil),
        *("--target", "llvm"),
        code=3,
    )
    assert "no record" in done.stderr
    rows = run_json("--db", victim, "top", "--layer", evil)
    assert {row["layer"] for row in rows} == {None}
    assert len(rows) == 2
