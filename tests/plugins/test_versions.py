"""Databases that another release of TVM tuned: records are served, replayed and applied."""

from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path

import matmuls
import pytest
import tvm
import tvm_ffi
from products import assert_multiplies

from tunedb.plugins.metaschedule import Database, compile
from tunedb.storage.approval import approve
from tunedb.storage.engine import parse_url
from tunedb.storage.store import Store
from tunedb.storage.versions import upgrade

TUNED = sorted((Path(__file__).parent / "tuned").glob("*.db.gz"))


@pytest.fixture(params=TUNED, ids=[path.name.removesuffix(".db.gz") for path in TUNED])
def tuned(request, tmp_path):
    """The path of a database that a release tuned for a matmul (make_tuned.py), approved."""
    path = tmp_path / "tuned.db"
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    upgrade(parse_url(path))
    with Store(path, read_only=True) as store:
        key = store.key
    approve(path, key)
    return path


def test_database_of_another_release_is_served_replayed_and_applied(tuned):
    mod, target = matmuls.matmul(), matmuls.llvm
    with closing(Database(tuned, target=target)) as database:
        times = [record.measurement.run_secs for record in database.store.records.iterate()]
        best = database.query_tuning_record(mod, target, "main")
        assert tuple(map(float, best.run_secs)) in times
        schedule = database.query_schedule(mod, target, "main")
        tvm.ir.assert_structural_equal(schedule.mod, database.query_ir_module(mod, target, "main"))
        assert not tvm_ffi.structural_equal(schedule.mod, mod)
        found = compile(mod, database, target)
    assert [use.record_id is not None for use in found.uses] == [True]
    assert_multiplies(found.executable["main"], 16)
