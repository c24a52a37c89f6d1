"""Feature extractors that TVM's cost models and search accept instead of their own."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import te_programs
import tvm
from logged import logged
from te_programs import KINDS, candidate
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T

from tunedb.errors import NotFoundError, PluginError, UsageError
from tunedb.features.ansor import PER_STORE_ANSOR, PER_STORE_TVM
from tunedb.features.base import Needs
from tunedb.features.scheduled import SCHEDULED
from tunedb.plugins.metaschedule import FeatureExtractor, PerStoreFeature
from tunedb.plugins.metaschedule.features import ir
from tunedb.plugins.metaschedule.features import rows as features
from tunedb.plugins.metaschedule.features.rows import rows_of

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@T.prim_func(s_tir=True)
def good(A: T.Buffer((64,), "float32")):
    for i in T.parallel(64):
        A[i] = A[i] * T.float32(2)


@T.prim_func(s_tir=True)
def empty(A: T.Buffer((64,), "float32")):
    for i in T.parallel(64):
        A[i] = T.float32(0)


@T.prim_func(s_tir=True)
def uneven(A: T.Buffer((64,), "float32")):
    for b in T.thread_binding(2, "blockIdx.x"):
        for t in T.thread_binding(16, "threadIdx.x"):
            A[b * 16 + t] = A[b * 16 + t] + T.float32(1)
        for s in T.thread_binding(32, "threadIdx.x"):
            A[b * 16 + s] = A[b * 16 + s] + T.float32(1)


def module(function):
    return tvm.IRModule({"main": function})


def context_of(mod, kind="llvm", num_threads=1):
    target = tvm.target.Target(KINDS[kind][0])
    return ms.TuneContext(mod, target=target, num_threads=num_threads)


def arrays(tensors):
    return [tensor.numpy() for tensor in tensors]


@pytest.fixture(scope="module")
def sampled():
    return te_programs.sample("CBR-1", "llvm", 12)


def test_per_store_feature_has_options_and_attributes_of_tvms():
    assert isinstance(PerStoreFeature(), ms.FeatureExtractor)
    for options in ({}, {"buffers_per_store": 3}, {"extract_workload": True}):
        ours = PerStoreFeature(**options)
        tvms = ms.feature_extractor.PerStoreFeature(**options)
        names = ("buffers_per_store", "arith_intensity_curve_num_samples", "cache_line_bytes")
        for name in (*names, "extract_workload", "feature_vector_length"):
            assert getattr(ours, name) == getattr(tvms, name), (options, name)
    assert PerStoreFeature(1, 2, 3, True).feature_vector_length == 57 + 18 + 2 + 7 + 8


@pytest.mark.parametrize("num_threads", [1, 5])
def test_per_store_feature_equals_tvms_with_any_number_of_threads(sampled, num_threads):
    made, candidates = sampled
    made = context_of(made.mod, num_threads=num_threads)
    extractor = PerStoreFeature()
    found = extractor.extract_from(made, candidates)
    # The tensors outlive the extractor.
    del extractor
    gc.collect()
    wanted = te_programs.per_store(made, candidates)
    assert len(found) == len(wanted) == 12
    for ours, tvms in zip(found, wanted, strict=True):
        assert str(ours.dtype) == "float64"
        np.testing.assert_allclose(ours.numpy(), tvms, **CLOSE)


@pytest.mark.parametrize("name", ["SFM-0", "T2D-0", "matmul", "DEP-0", "winograd", "GMM-0"])
def test_extract_workload_equals_tvms_workload_embedding(name):
    made, candidates = te_programs.sample(name, "llvm", 2)
    found = PerStoreFeature(extract_workload=True).extract_from(made, candidates)
    wanted = te_programs.per_store(made, candidates, extract_workload=True)
    for ours, tvms in zip(arrays(found), wanted, strict=True):
        assert ours.shape[1] == 172
        np.testing.assert_allclose(ours, tvms, **CLOSE)


@pytest.mark.parametrize(
    ("options", "wanted"), [((), SCHEDULED), (("ansor.per_store/ansor",), PER_STORE_ANSOR)]
)
def test_feature_extractor_returns_rows_of_a_set(options, wanted, sampled):
    made, candidates = sampled
    extractor = FeatureExtractor(*options)
    assert (extractor.set, extractor.feature_vector_length) == (wanted.name, len(wanted.columns))
    found = arrays(extractor.extract_from(made, candidates))
    rows = rows_of([one.sch.mod for one in candidates], made.target, wanted)
    for ours, expected in zip(found, rows, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_feature_extractor_rejects_sets_that_no_cost_model_can_use(sampled):
    with pytest.raises(NotFoundError, match=r"no such set"):
        FeatureExtractor("no such set")
    with pytest.raises(UsageError, match="steps is not computed from IR"):
        FeatureExtractor("steps")
    with pytest.raises(UsageError, match="a varying number of columns"):
        FeatureExtractor(set="autotvm.itervar")
    context = ms.TuneContext(sampled[0].mod, num_threads=1)
    with pytest.raises(PluginError, match="no target"):
        PerStoreFeature().extract_from(context, sampled[1])


def test_programs_without_stores_have_no_rows():
    candidates = [candidate(module(one)) for one in (empty, good)]
    found = arrays(PerStoreFeature().extract_from(context_of(module(good)), candidates))
    assert [array.shape for array in found] == [(0, 164), (1, 164)]
    assert arrays(PerStoreFeature().extract_from(context_of(module(good)), [])) == []


@pytest.mark.parametrize("num_threads", [1, 3])
def test_extractor_returns_zeros_for_failing_programs_and_warns_once(num_threads):
    mods = [module(one) for one in (good, uneven, good, uneven, empty)]
    made = context_of(mods[0], "cuda", num_threads)
    extractor = PerStoreFeature(extract_workload=True)
    with logged() as warnings:
        found = arrays(extractor.extract_from(made, list(map(candidate, mods))))
    assert [array.shape[0] for array in found] == [1, 1, 1, 1, 0]
    assert not found[1].any()
    assert found[0].any()
    (warning,) = warnings
    assert warning.startswith("2 of 5 candidates have no features and get zeros: ")
    assert "same extent" in warning
    with pytest.raises(RuntimeError, match="same extent"):  # TVM's own ends the search
        te_programs.per_store(made, [candidate(mods[1])])


def test_rows_of_returns_the_reason_of_each_failing_program():
    mods = [module(good), module(uneven)]
    target = tvm.target.Target(KINDS["cuda"][0])
    rows, error = rows_of(mods, target, PER_STORE_TVM)
    assert rows.shape == (1, 164)
    assert isinstance(error, PluginError)
    assert "\n" not in str(error)

    class Broken:
        name, version, columns, needs = "broken", 1, ("a",), Needs.SCHEDULED

        def nest_rows(self, nest, *, gpu):
            raise ZeroDivisionError("this set is broken")

    (error,) = rows_of(mods[:1], target, Broken())
    assert str(error) == "broken: this set is broken"
    Broken.needs = Needs.STEPS
    with pytest.raises(PluginError, match="not computed from a module"):
        rows_of(mods, target, Broken())


def test_rows_of_gives_each_set_the_form_of_module_that_it_needs():
    """SCHEDULED keeps the unit loop and the blocks, LOWERED drops the loop, FLAT the blocks."""

    @T.prim_func(s_tir=True)
    def unit(A: T.Buffer((64,), "float32")):
        for i, j in T.grid(64, 1):
            with T.sblock("A"):
                vi = T.axis.spatial(64, i + j)
                A[vi] = A[vi] + T.float32(1)

    seen = {}

    class Loops:
        name, version, columns, needs = "loops", 1, ("a",), Needs.SCHEDULED

        def nest_rows(self, nest, *, gpu):
            seen[self.needs] = (nest.n_loops, nest.n_blocks, gpu)
            return np.zeros((1, 1))

    for needs in (Needs.SCHEDULED, Needs.LOWERED, Needs.FLAT):
        Loops.needs = needs
        (rows,) = rows_of([module(unit)], tvm.target.Target("llvm"), Loops())
        assert not isinstance(rows, Exception), rows
    assert seen[Needs.SCHEDULED] == (2, 2, False)
    assert seen[Needs.LOWERED][0] == 1
    assert seen[Needs.FLAT] == (2, 0, False)


def test_tvms_xgb_model_predicts_the_same_with_either_extractor(sampled):
    """It works like with its own extractor, failing candidates included."""
    pytest.importorskip("xgboost")
    made, candidates = sampled
    results = [ms.runner.RunnerResult([0.001 * (3 + i % 5)], None) for i in range(len(candidates))]
    predictions = []
    for extractor in (PerStoreFeature(), ms.feature_extractor.PerStoreFeature()):
        config = ms.cost_model.xgb_model.XGBConfig(nthread=1, seed=1)
        model = ms.cost_model.XGBModel(extractor=extractor, config=config, num_warmup_samples=0)
        model.update(made, candidates, results)
        predictions.append(model.predict(made, candidates))
        if len(predictions) == 1:
            more = model.predict(made, [*candidates, candidate(module(uneven))])
            assert len(more) == len(candidates) + 1
    np.testing.assert_allclose(*predictions, rtol=1e-4)


def test_rows_of_many_modules_equal_rows_of_each_alone():
    """Each thread releases the GIL once for its modules; one that fails is read on its own."""
    made, candidates = te_programs.sample("CBR-0", "cuda", 40)
    modules = [one.sch.mod for one in candidates]
    alone = [SCHEDULED.nest_rows(ir.read(mod), gpu=True) for mod in modules]
    mixed = [modules[0], "no module", modules[1]]
    for threads in (1, 2):
        found = features.rows_of(modules, made.target, SCHEDULED, threads)
        assert all(map(np.array_equal, found, alone))
        first, error, second = features.rows_of(mixed, made.target, SCHEDULED, threads)
        assert np.array_equal(first, alone[0]) and np.array_equal(second, alone[1])
        assert "IRModule" in str(error)
