"""Weights of interpolations against ONNX's own computation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tunedb.plugins.metaschedule.frontends.resizing import Method, taps

METHODS = st.builds(
    Method,
    mode=st.sampled_from(["nearest", "linear", "cubic"]),
    coordinates=st.sampled_from(["half_pixel", "half_pixel_symmetric", "asymmetric"]),
    nearest=st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
    cubic=st.sampled_from([-0.75, -0.5]),
    exclude_outside=st.booleans(),
    antialias=st.booleans(),
)


def by_onnx(values, scale, method):
    """Return values along an axis as ONNX resizes them."""
    is_smooth = method.mode != "nearest"
    node = helper.make_node(
        *("Resize", ["x", "", "scales"], ["y"]),
        **{"mode": method.mode, "coordinate_transformation_mode": method.coordinates},
        **{"nearest_mode": method.nearest, "cubic_coeff_a": method.cubic},
        antialias=int(method.antialias and is_smooth),
        exclude_outside=int(method.exclude_outside and is_smooth),
    )
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None]) for n in ("x", "scales")]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])
    graph = helper.make_graph([node], "graph", kinds, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    inputs = {"x": values, "scales": np.array([scale], "float32")}
    return ReferenceEvaluator(model).run(None, inputs)[0]


# Quarters are exact in float32 and float64, in which the two compute places.
@given(st.integers(1, 12), st.integers(1, 14), METHODS)
def test_weighted_sums_equal_onnx(size, quarters, method):
    scale = quarters / 4
    if int(size * scale) == 0:
        return
    values = np.random.default_rng(size).normal(size=size).astype("float32")
    expected = by_onnx(values, scale, method)
    elements, weights = taps(size, len(expected), scale, method)
    found = (values[elements] * weights).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("coordinates", ["align_corners", "pytorch_half_pixel"])
def test_a_single_pixel_is_the_first(coordinates):
    elements, weights = taps(7, 1, 0.2, Method("linear", coordinates))
    assert (elements * weights).sum() == 0


def test_corners_are_aligned_by_whole_sizes():
    """As in PyTorch and ONNX Runtime: 5 * 1.5 = 7.5 pixels are 7."""
    elements, weights = taps(5, 7, 1.5, Method("linear", "align_corners"))
    np.testing.assert_allclose((elements * weights).sum(axis=1), np.linspace(0, 4, 7))
