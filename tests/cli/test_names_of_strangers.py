"""Attack 1 from the victim's side: merge, top, apply and a layer."""

import shutil
from contextlib import closing

import pytest
from builders import sql
from matmuls import commit, matmul
from tvm.script import tirx as T  # noqa: F401 - modules that are read name it

import tunedb
from tunedb.exchange.bundle import new_manifest, write_bundle
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.plugins.metaschedule import Database, modules
from tunedb.storage.exchange_types import EVERYTHING

LLVM = {"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v2"}


@pytest.fixture
def victim(tmp_path, run):
    """A database with an own record of a matmul of 256, and a verified faster one of 64."""
    with closing(Database(tmp_path / "team.db", target=LLVM)) as database:
        commit(database, matmul(64), [1e-6], tile=(16, 4))
    path = tmp_path / "tune.db"
    with closing(Database(path, target=LLVM)) as database:
        commit(database, matmul(256), [1e-3], tile=(64, 4))
    run("--db", path, "merge", tmp_path / "team.db")
    with tunedb.open(path) as store:
        (theirs,) = [row.id for row in store.sources.summaries() if row.store != store.key]
    run("--db", path, "trust", str(theirs), "verified")
    return path


@pytest.fixture
def bundle(tmp_path):
    """A bundle of the team's records that gives the names of the large matmul to the small one."""
    evil = shutil.copyfile(tmp_path / "team.db", tmp_path / "evil.db")
    large = matmul(256)
    insertion = "INSERT INTO workload_alias SELECT ?, ?, id, 1 FROM workload"
    for name in modules.aliases(large, str(large.script(show_meta=True))):
        sql(evil, insertion, name.scheme, name.key)
    out = tmp_path / "evil.tunedb"
    with closing(DatabasePeer(evil, own=True)) as peer:
        write_bundle(out, peer.chunks(EVERYTHING), new_manifest(peer.store_key, EVERYTHING))
    return out


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


def test_attack_1_layer_with_false_names_serves_no_record(victim, bundle, tmp_path, run, run_json):
    """The names of the layer belong to a matmul of another shape."""
    empty = tmp_path / "empty.db"
    tunedb.open(empty).close()
    out = tmp_path / "scheduled.py"
    done = run(
        *("--db", empty, "apply", model(tmp_path), "-o", out, "--layer", tmp_path / "evil.db"),
        *("--target", "llvm"),
        code=3,
    )
    assert "no record" in done.stderr
    rows = run_json("--db", victim, "top", "--layer", tmp_path / "evil.db")
    assert {row["layer"] for row in rows} == {None}
    assert len(rows) == 2
