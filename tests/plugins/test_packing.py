"""Packing of constants: numpy copies them as the functions do that TVM compiles."""

import networks
import pytest
import tvm
from tvm import relax
from tvm.relax import transform
from tvm.relax.frontend.onnx import from_onnx

from tunedb.plugins.metaschedule.deploy.packing import pack_weights
from tunedb.plugins.metaschedule.modules import FREE_LAYOUTS

TARGET = tvm.target.Target(networks.LLVM)

#: Layouts that a schedule may give to a matrix of 12 x 8.
MAPS = {
    "tiles": lambda i, j: [i // 4, j // 8, i % 4, j % 8],
    "fused": lambda i, j: [(i * 8 + j) // 16, (i * 8 + j) % 16],
    "transposed": lambda i, j: [j, i],
    "split twice": lambda i, j: [i // 6, i % 6 // 2, j // 4, i % 2, j % 4],
}


def products(layout, *split):
    """Return products with two constants in a layout, and with one that TVM computes."""
    b = networks.Builder()
    first, second, third = (b.weight(12, 8) for _ in range(3))
    weights = [first, second, b.node("Exp", [third])]
    data = b.node("Sum", [b.node("MatMul", [weight, "x"]) for weight in weights])
    mod = from_onnx(b.model(data, {"x": [8, 4]}, [12, 4]))
    with TARGET:
        mod = transform.LegalizeOps()(mod)
    sch = tvm.s_tir.Schedule(mod["matmul"].with_attr(FREE_LAYOUTS, [0]))
    matmul = sch.get_sblock("matmul")
    packing = sch.cache_read(matmul, 0, "global")
    sch.annotate(packing, "meta_schedule.layout_rewrite_preproc", 1)
    sch.transform_layout(matmul, ("read", 0), layout)
    if split:
        sch.split(sch.get_loops(packing)[0], [None, *split])
    func = sch.mod["main"].with_attr({"tirx.is_scheduled": True})
    mod.update_func(mod.get_global_var("matmul"), func)
    return mod


@pytest.mark.parametrize(("name", "split"), [*((name, ()) for name in MAPS), ("tiles", (5,))])
def test_packed_constants_equal_those_of_tvms_passes_to_the_bit(name, split):
    mod = products(MAPS[name], *split)
    passes = [transform.SplitLayoutRewritePreproc(), transform.FoldConstant()]
    passes += [transform.CanonicalizeBindings(), transform.DeadCodeElimination()]
    with TARGET, tvm.transform.PassContext(opt_level=3):
        expected = tvm.transform.Sequential(passes)(mod)
        tvm.ir.assert_structural_equal(pack_weights(mod), expected)


def test_tvm_compiles_no_function_to_pack_constants(monkeypatch):
    nothing = relax.transform.CanonicalizeBindings()
    monkeypatch.setattr(relax.transform, "FoldConstant", lambda: nothing)
    with TARGET, tvm.transform.PassContext(opt_level=3):
        text = pack_weights(products(MAPS["tiles"])).script()
    # TVM computes the third constant.
    assert text.count("R.call_tir(cls.matmul_prepacked") == 3, text
    assert text.count("R.call_tir(cls.matmul_weight_prepack") == 1, text
