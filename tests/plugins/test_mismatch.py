"""Why a module finds no record: nearest workloads, other targets, records that do not count."""

from contextlib import closing

import pytest
import tvm
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te

import tunedb
from tunedb.errors import TargetError
from tunedb.plugins.metaschedule import Database, compat
from tunedb.plugins.metaschedule.deploy.explain import (
    NOTHING,
    equal_but_for_attributes,
    explain,
    first_difference,
)
from tunedb.records import (
    Failure,
    FailureKind,
    Measurement,
    Phase,
    Source,
    SourceKind,
    Status,
    Trust,
)


def with_attribute(mod, key, value):
    return tvm.IRModule({"main": mod["main"].with_attr(key, value)})


def elementwise(f, shape=(8, 8), dtype="float32"):
    a = te.placeholder(shape, dtype, name="A")
    b = te.compute(shape, lambda i, j: f(a[i, j]), name="B")
    return tvm.IRModule({"main": te.create_prim_func([a, b])})


@settings(max_examples=examples(20))
@given(a=st.integers(1, 40), b=st.integers(1, 40))
def test_first_difference_names_shape_of_an_argument(a, b):
    left, right = elementwise(te.exp, (a, 3)), elementwise(te.exp, (b, 3))
    found = first_difference(left, right)
    if a == b:
        assert found is None
    else:
        where = "argument 1 (A), shape[0]"
        assert (found.where, found.here, found.there) == (where, str(a), str(b))
        assert f"({a}, 3)" in found.here_line and f"({b}, 3)" in found.there_line


def test_first_difference_names_dtype_of_an_argument():
    found = first_difference(elementwise(te.exp), elementwise(te.exp, dtype="float16"))
    assert found.where == "argument 1 (A), dtype"
    quote = '"' if compat.number() >= (0, 26) else ""
    assert (found.here, found.there) == (f"{quote}float32{quote}", f"{quote}float16{quote}")


def test_first_difference_names_block_and_both_expressions(tools):
    found = first_difference(elementwise(te.exp), elementwise(te.sqrt))
    assert found.where.startswith("block B")
    assert (found.here, found.there) == ("T.exp(A[v_i, v_j])", "T.sqrt(A[v_i, v_j])")
    found = first_difference(elementwise(lambda v: v + 1.0), elementwise(lambda v: v + 2.0))
    assert (found.here, found.there) == ("1.0", "2.0")
    found = first_difference(tools.matmul(), tools.matmul(post=lambda v: v + 1.0))
    assert (found.here, found.there) == (NOTHING, "C")
    assert found.here_line is None
    found = first_difference(elementwise(te.exp), tools.matmul(8))
    assert (found.where, found.here) == ("argument 3", NOTHING)


def test_first_difference_names_attribute_of_function(tools):
    mod = tools.matmul()
    fused = with_attribute(mod, "op_pattern", 4)
    found = first_difference(mod, fused)
    assert (found.where, found.here, found.there) == ("attribute op_pattern", NOTHING, "4")
    expected = type(found)("attribute op_pattern", NOTHING, "4")
    assert equal_but_for_attributes(mod, fused) == [expected]
    assert equal_but_for_attributes(mod, with_attribute(tools.matmul(8), "op_pattern", 4)) is None
    # Names do not count, but functions do.
    assert equal_but_for_attributes(mod, mod) == []
    assert first_difference(mod, tools.matmul()) is None
    assert first_difference(mod, tools.matmul(block="Z")) is None
    two = tvm.IRModule({"main": mod["main"], "other": mod["main"]})
    assert first_difference(mod, two) is not None
    assert equal_but_for_attributes(mod, two) is None


def commit(path, tools, mod, run_secs=(1e-3,), target=None, **fields):
    with closing(Database(path, target=target or tools.llvm)) as database:
        tools.commit(database, mod, list(run_secs), target=target, **fields)


def findings(path, mod, target, **fields):
    with tunedb.open(path, read_only=True) as store:
        return explain(store, mod, target, **fields)


def codes(finding):
    return [reason.code for reason in finding.reasons]


def test_explain_returns_the_record_of_each_function_by_name(path, tools):
    commit(path, tools, tools.matmul())
    (found,) = findings(path, tools.matmul(), tools.llvm)
    assert (found.function, found.use.record_id, found.workload_ids) == ("main", 1, (1,))
    assert (found.reasons, found.nearest) == ((), ())
    both = tvm.IRModule({"b": tools.matmul()["main"], "a": tools.matmul(8)["main"]})
    one, two = findings(path, both, tools.llvm)
    assert (one.function, one.use, two.function, two.use.record_id) == ("a", None, "b", 1)
    with pytest.raises(TargetError):
        findings(path, tools.matmul(), {"kind": "abacus"})


def test_explain_orders_nearest_workloads_by_distance(path, tools):
    for n in (64, 32, 8):
        commit(path, tools, tools.matmul(n), tile=(n // 4, 4))
    (found,) = findings(path, tools.matmul(16), tools.llvm, most=3)
    assert codes(found) == ["unknown"]
    # 16 is one octave from 32 and from 8 in each matrix; the workload stored first comes first.
    assert [near.workload_id for near in found.nearest] == [2, 3, 1]
    assert found.nearest[0].octaves == pytest.approx(6**0.5)
    assert found.nearest[0].difference.where == "argument 1 (A), shape[0]"
    assert (found.nearest[0].difference.here, found.nearest[0].difference.there) == ("16", "32")


def test_explain_names_attribute_in_which_a_workload_differs(path, tools):
    commit(path, tools, tools.matmul(post=lambda v: v + 1.0))
    commit(path, tools, tools.matmul(32), tile=(8, 4))
    commit(path, tools, with_attribute(tools.matmul(), "op_pattern", 4))
    (found,) = findings(path, tools.matmul(), tools.llvm)
    # The anchor block is the same in all of them.
    assert codes(found) == ["attributes", "equality", "unknown"]
    assert "workload 3 differs only in attributes" in found.reasons[0].text
    assert "attribute op_pattern is nothing here, 4 there" in found.reasons[0].text
    assert found.nearest[0].workload_id == 3


def test_explain_suggests_looser_module_equality(path, tools):
    commit(path, tools, tools.matmul(post=lambda v: v + 1.0))
    mod = tools.matmul(post=lambda v: v * 2.0)
    (found,) = findings(path, mod, tools.llvm)
    assert codes(found) == ["equality", "unknown"]
    assert 'module_equality="anchor-block"' in found.reasons[0].text
    (found,) = findings(path, mod, tools.llvm, module_equality="anchor-block")
    assert found.workload_ids == (1,) and found.use is not None


def test_explain_names_differences_of_targets(path, tools):
    commit(path, tools, tools.matmul(), target=tools.llvm_other)
    commit(path, tools, tools.matmul(), target=tools.llvm_newer)
    commit(path, tools, tools.matmul(), target=tools.cuda)
    (found,) = findings(path, tools.matmul(), tools.llvm)
    assert found.use is None and set(codes(found)) == {"target"}
    other, newer, cuda = (reason.text for reason in found.reasons)
    assert "num-cores 2 here, 8 there" in other and "--compatible" in other
    assert "mcpu x86-64-v2 here, x86-64-v4 there" in newer and "--compatible" not in newer
    assert "never served" in cuda
    (found,) = findings(path, tools.matmul(), tools.llvm, fallback="compatible")
    assert found.use.record_id == 1


def store_as(path, source, tools, **fields):
    """Store another record of the program of record 1, and retract record 1."""
    with tunedb.open(path) as store:
        program = store.records.get(1).measurement.program
        store.records.add([Measurement(program, (1e-3,), measured_at=7, **fields)], source)
        store.trust.retract([1], "no reason")


def test_explain_counts_failed_foreign_retracted_and_cut_records(path, tools):
    commit(path, tools, tools.matmul())
    store_as(path, Source("theirs", SourceKind.FILE, Trust.FOREIGN), tools)
    for number, kind in enumerate((FailureKind.TIMEOUT, FailureKind.TIMEOUT, FailureKind.CRASH)):
        failure = Failure(kind, Phase.RUN, "no")
        more = {"status": Status.FAILED, "failure": failure, "occurrence": number}
        store_as(path, Source("more"), tools, **more)
    store_as(path, Source("more"), tools, status=Status.CUT_SHORT)
    (found,) = findings(path, tools.matmul(), tools.llvm)
    texts = {reason.code: reason.text for reason in found.reasons}
    assert set(texts) == {"failed", "foreign", "retracted", "cut"}
    assert codes(found)[0] == "failed", "what most records are comes first"
    assert "3 records for this target failed (2 timeout, 1 crash)" in texts["failed"]
    assert "tunedb revalidate --foreign" in texts["foreign"]
    assert "1 record for this target cut short" in texts["cut"]


def test_explain_reports_workload_of_foreign_sources_alone(tmp_path, path, tools):
    commit(tmp_path / "theirs.db", tools, tools.matmul())
    with tunedb.open(tmp_path / "theirs.db") as theirs, tunedb.open(path) as store:
        foreign = Source("x", SourceKind.FILE, Trust.FOREIGN)
        store.records.add([theirs.records.get(1).measurement], foreign)
    (found,) = findings(path, tools.matmul(), tools.llvm)
    assert (codes(found), found.workload_ids) == (["foreign"], (1,))


def test_explain_reports_workload_without_records(path, tools):
    commit(path, tools, tools.matmul(8), tile=(2, 4))
    with closing(Database(path, target=tools.llvm)) as database:
        database.commit_workload(tools.matmul())
    (found,) = findings(path, tools.matmul(), tools.llvm)
    assert codes(found) == ["empty"]


def test_explain_reports_records_that_do_not_replay(path, tools):
    mod, other = tools.matmul(), tools.matmul(block="Z")
    with closing(Database(path, target=tools.llvm)) as database:
        record = tools.record(other, database.commit_workload(mod), [1e-3], block="Z")
        database.commit_tuning_record(record)
    (found,) = findings(path, mod, tools.llvm)
    assert codes(found) == ["broken"]
    assert "tunedb quarantine" in found.reasons[0].text


def test_explain_names_nearest_workload_that_tvm_cannot_read_without_difference(path, tools):
    commit(path, tools, tools.matmul())
    with tunedb.open(path) as store:
        store.trust.retract([1], "so that it is not served")
    (found,) = findings(path, tools.matmul(32), tools.llvm)
    assert [near.difference for near in found.nearest] == [None]
