"""Ansor's per-store features: compared with the plain Python reference, and odd programs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nests import Build, nests, with_array
from reference_bounds import Refused
from reference_per_store import per_store as reference

from tunedb.errors import FormatError, TuneDBError
from tunedb.features._nest import Op, Tag
from tunedb.features._per_store import per_store

_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "buffers_per_store": st.integers(0, 4),
        "curve_samples": st.integers(0, 5),
        "cache_line": st.sampled_from([1, 32, 128]),
    },
)
_THEIRS = {"buffers_per_store": "buffers", "curve_samples": "samples", "cache_line": "cache_line"}


def _ours(nest, flavour, gpu, options):
    try:
        return per_store(nest, flavour=flavour, gpu=gpu, **options)
    except FormatError:
        return None


def _reference(nest, flavour, gpu, options):
    try:
        options = {_THEIRS[name]: value for name, value in options.items()}
        return reference(nest.dump(), flavour, gpu, follows_025=nest.follows_025, **options)
    except Refused:
        return None


def _compare(nest, *flavours, gpu=False, **options):
    for flavour in flavours or ("tvm", "ansor"):
        ours, theirs = _ours(nest, flavour, gpu, options), _reference(nest, flavour, gpu, options)
        assert (ours is None) == (theirs is None)
        assert ours is None or len(ours) == len(theirs)
        if theirs:
            np.testing.assert_allclose(ours, np.array(theirs), rtol=1e-9, atol=1e-9)


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(nests(), st.booleans(), _OPTIONS)
def test_both_flavours_equal_the_reference(nest, gpu, options):
    _compare(nest, gpu=gpu, **options)


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(nests())
def test_values_of_tvm_0_25_equal_the_reference(nest):
    nest.follows_025 = True
    _compare(nest, "tvm")


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(nests(tame=True), st.booleans())
def test_simple_programs_have_finite_features(nest, gpu):
    for flavour in ("tvm", "ansor"):
        _compare(nest, flavour, gpu=gpu)
        rows = per_store(nest, flavour=flavour, gpu=gpu)
        assert rows.shape[1] == 164
        assert np.isfinite(rows).all()


def _one_store(index, extent=8):
    """B[index(i)] = A[index(i)] + 1 in a loop; `index` makes the index of a variable."""
    build = Build()
    a, b = build.array("A", 8), build.array("B", 8)
    at = index(build.loop("i", extent))
    b[at] = a[at] + 1.0
    return build.done()


class TestOddPrograms:
    def test_programs_without_statements_have_no_rows(self):
        build = Build(function=True)
        build.loop("i", 4)
        for nest in (Build().nest, build.done()):
            for flavour in ("tvm", "ansor"):
                assert per_store(nest, flavour=flavour, gpu=False).shape == (0, 164)

    def test_per_store_rejects_division_by_zero(self):
        nest = _one_store(lambda i: i // 0)
        for flavour in ("tvm", "ansor"):
            with pytest.raises(FormatError, match="divides by zero"):
                per_store(nest, flavour=flavour, gpu=False)

    def test_per_store_rejects_wrong_number_of_indices(self):
        build, a = with_array(8, 8)
        a[0] = a[0, 0]
        with pytest.raises(FormatError, match="number of indices"):
            per_store(build.nest, flavour="tvm", gpu=False)

    def test_only_tvm_flavour_rejects_unknown_threads(self):
        build, a = with_array(8)
        i = build.thread(Tag.TAG_OTHER, 8)
        a[i] = a[i]
        nest = build.done()
        with pytest.raises(FormatError, match="bound to a thread"):
            per_store(nest, flavour="tvm", gpu=True)
        assert len(per_store(nest, flavour="ansor", gpu=True)) == 1

    def test_shared_nodes_are_counted_without_expanding_them(self):
        """Forty doublings: 2**40 leaves as a tree."""
        build, a = with_array(8)
        value = a[0]
        for _ in range(40):
            value += value
        a[1] = value
        row = per_store(build.nest, flavour="tvm", gpu=False)[0]
        assert row[1] == pytest.approx(40.0)  # 2**40 - 1 additions

    def test_products_wrap_at_64_bits_as_in_the_reference(self):
        build, a = with_array(8, function=True)
        for level in range(2):
            i = build.loop(f"i{level}", 2**32 - 1, bits=64)
        a[i] = a[i] + a[i]
        _compare(build.done())

    def test_nest_of_70_loops_equals_the_reference(self):
        """From the 64th on, loops share a bit in the sets of loops that the kernel keeps."""
        build, a = with_array(8, 8, 8, function=True)
        loops = [build.loop(f"i{level}", 2) for level in range(70)]
        at = [loops[2] + loops[64], loops[66], loops[68]]
        a[at] = a[at] + a[at]
        _compare(build.done())

    def test_store_with_40_buffers_equals_the_reference(self):
        build = Build(function=True)
        first, *others = (build.array(f"A{k}", 8) for k in range(40))
        i = build.loop("i", 8)
        first[i] = sum((other[i] for other in others), start=first[i])
        _compare(build.done(), buffers_per_store=40)

    def test_error_does_not_change_later_rows(self):
        good = _one_store(lambda i: i)
        bad = _one_store(lambda i: i.build.op(Op.OP_MOD, i, 0))
        before = per_store(good, flavour="tvm", gpu=False)
        with pytest.raises(TuneDBError):
            per_store(bad, flavour="tvm", gpu=False)
        np.testing.assert_array_equal(per_store(good, flavour="tvm", gpu=False), before)

    def test_per_store_accepts_0_buffers(self):
        rows = per_store(_one_store(lambda i: i), flavour="tvm", gpu=False, buffers_per_store=0)
        assert rows.shape == (1, 74)


def test_concurrent_threads_compute_correct_rows():
    nests = [_one_store(lambda i: i, extent) for extent in range(2, 10)]
    wanted = [per_store(nest, flavour="ansor", gpu=False) for nest in nests]

    def work(k):
        return all(
            np.array_equal(per_store(nests[k], flavour="ansor", gpu=False), wanted[k])
            for _ in range(300)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(len(nests))))
