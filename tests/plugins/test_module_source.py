"""Modules from files, packages and models."""

import subprocess
import sys
from types import SimpleNamespace

import networks
import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from onnx.reference import ReferenceEvaluator
from raising import raises_line
from tvm import relax
from tvm.relax import BlockBuilder, Var, const
from tvm.script import relax as R

from tunedb import FormatError, NotFoundError, PluginError, UsageError
from tunedb.plugins.metaschedule import compat, module_source
from tunedb.plugins.metaschedule.compat import relax_type
from tunedb.plugins.metaschedule.module_source import as_module, is_relax, load_module, prim_funcs

HEADER = """\
from tvm import te
from tvm.script import ir as I, relax as R, tirx as T
"""

ADD = """\
@T.prim_func(s_tir=True)
def {name}(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("{name}"):
            v = T.axis.spatial(8, i)
            b[v] = a[v] + T.float32(1)
"""

RELAX = """\
@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 4), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y
"""


@pytest.fixture
def write(tmp_path):
    """A function that writes a file and returns its path."""

    def write(text, name="m.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_load_module_joins_the_prim_funcs_of_a_file(write):
    # The main block is not run.
    main = "if __name__ == '__main__':\n    raise OSError\n"
    path = write(HEADER + ADD.format(name="one") + ADD.format(name="two") + main)
    mod = load_module(path)
    assert list(prim_funcs(mod)) == ["one", "two"]
    assert not is_relax(mod)
    assert list(prim_funcs(load_module(path, function="two"))) == ["two"]
    assert list(prim_funcs(load_module(f"{path}:one"))) == ["one"]
    with pytest.raises(NotFoundError, match="no PrimFunc 'three'; there are: one, two"):
        load_module(path, function="three")


def test_load_module_reads_printed_modules_functions_and_constants(write, tools):
    mod = tools.matmul(8)
    assert tvm_ffi.structural_equal(load_module(write(mod.script())), mod)
    named = write(mod["main"].script(), "matmul.py")
    assert tvm_ffi.structural_equal(load_module(named)["main"], mod["main"])
    builder, x = BlockBuilder(), Var("x", R.Tensor((2,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(tvm.relax.op.add(x, const(np.float32([1, 2])))))
    mod = builder.get()
    named = write(mod.script(show_meta=True), "constants.py")
    assert tvm_ffi.structural_equal(load_module(named), mod)


def test_load_module_prefers_relax_program_to_functions_beside_it(write):
    path = write(HEADER + ADD.format(name="one") + RELAX)
    assert is_relax(load_module(path))
    assert list(prim_funcs(load_module(f"{path}:one"))) == ["one"]


FACTORIES = f"""\
{HEADER}
def te_add(n=8):
    a = te.placeholder((n,), name="a")
    return te.create_prim_func([a, te.compute((n,), lambda i: a[i] + 1.0, name="b")])

def scripted():
{"".join("    " + line + chr(10) for line in RELAX.splitlines())}
    return Model

def failing(n):
    return n

first, second = te_add(4), te_add(8)
number = 7
"""


def test_load_module_calls_function_that_returns_a_module(write):
    path = write(FACTORIES)
    assert list(prim_funcs(load_module(f"{path}:te_add"))) == ["te_add"]
    assert is_relax(load_module(f"{path}:scripted"))
    # Functions of TE have the names of their variables.
    assert list(prim_funcs(load_module(path))) == ["first", "second"]
    for name, words in (
        ("number", "a int is not an IRModule, PrimFunc or relax.Function"),
        ("print", "no 'print'"),
        ("te", "a module is not an IRModule"),
        ("failing", r"failing\(\) raised TypeError: .*'n'"),
    ):
        with pytest.raises((FormatError, NotFoundError), match=words):
            load_module(f"{path}:{name}")


def test_load_module_imports_packages_from_the_working_directory(write, tmp_path, monkeypatch):
    (tmp_path / "our_models").mkdir()
    write(FACTORIES, "our_models/small.py")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert list(prim_funcs(load_module("our_models.small:te_add"))) == ["te_add"]
    assert sys.path == before
    with pytest.raises(NotFoundError, match=r"no 'third'; there are: first, second$"):
        load_module("our_models.small:third")
    with pytest.raises(NotFoundError, match=r"our_models\.big: no such module"):
        load_module("our_models.big:te_add")
    with pytest.raises(NotFoundError, match="no_such_package: no such module"):
        load_module("no_such_package:f")


def test_load_module_lets_a_file_import_its_neighbours_and_leaves_no_cache(write, tmp_path):
    write(HEADER + ADD.format(name="one"), "beside.py")
    path = write("from beside import one\n")
    assert list(prim_funcs(load_module(path))) == ["one"]
    assert not list((tmp_path / "__pycache__").glob("m.*"))
    path.write_text("from beside import one as two\n")
    assert list(prim_funcs(load_module(f"{path}:two"))) == ["one"]
    sys.modules.pop("beside")


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("x = = 1\n", FormatError, r"m\.py, line 1: invalid syntax"),
        ("x = 1\ny = x.z\n", FormatError, r"m\.py, line 2: AttributeError: 'int' object has no"),
        ("import tvm_no_such\n", FormatError, r"m\.py, line 1: ModuleNotFoundError"),
        ("x = 1\n", FormatError, r"m\.py: it defines no IRModule and no PrimFunc; .*m\.py:NAME"),
        ("\0", FormatError, r"m\.py.*null bytes"),
        (
            HEADER + RELAX + RELAX.replace("class Model", "class Other"),
            UsageError,
            r"defines Model, Other; choose one: .*m\.py:Model",
        ),
        (
            HEADER + ADD.format(name="one").replace("a[v] +", "nothing[v] +"),
            FormatError,
            r"m\.py, line 3: ",
        ),
    ],
)
def test_load_module_rejects_files_without_a_module_in_one_line(write, text, kind, words, capfd):
    with raises_line(kind, match=words):
        load_module(write(text))


def test_load_module_rejects_other_specs_and_missing_files(tmp_path):
    for spec in ("matmul", "a b:c", "model.txt", "", "a/b:c"):
        with pytest.raises(UsageError, match=r"give a TVMScript file \(.py\), package.module:name"):
            load_module(spec)
    for name in ("m.py", "m.onnx", "m.pt2"):
        with pytest.raises(NotFoundError, match="no such file"):
            load_module(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [("m.onnx", "onnx", r"'tunedb\[onnx\]'"), ("m.pt2", "torch", "torch")],
)
def test_load_module_says_how_to_install_a_package(write, name, package, install, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PluginError, match=f"run: pip install {install}$"):
        load_module(write("", name))


def test_load_module_raises_format_error_for_unreadable_model(write, monkeypatch):
    def load(_torch, _path):
        raise ValueError("protobuf\nis broken")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setitem(module_source._READERS, ".pt2", ("torch", "torch", load))
    with pytest.raises(FormatError, match=r"m\.pt2: ValueError: protobuf is broken$"):
        load_module(write("", "m.pt2"))


@pytest.fixture
def saved(tmp_path):
    """A function that saves a model of ONNX and returns its path."""

    def saved(model):
        onnx.save(model, str(tmp_path / "m.onnx"))
        return tmp_path / "m.onnx"

    return saved


def test_load_module_reads_onnx_model(saved):
    mod = load_module(saved(networks.mobile()))
    assert is_relax(mod) and mod.script().count("R.nn.conv2d(") == 4


def test_onnx_sizes_without_a_name_get_one(saved):
    model = networks.symbolic("batch", "?")
    model.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    (param,) = load_module(saved(model))["main"].params
    assert [str(size) for size in relax_type(param).shape][:2] == ["text_0", "text_1"]


def unknown_operator():
    builder = networks.Builder()
    return builder.model(builder.node("Selu2", ["image"]), {"image": [1, 3]}, [1, 3])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "ir_version"),
        (b"no model", "Unable to parse"),
        (unknown_operator().SerializeToString(), "No Op registered for Selu2.*Name: selu2_0"),
    ],
)
def test_load_module_rejects_broken_onnx_model_in_one_line(tmp_path, content, words):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with raises_line(FormatError, match=rf"m\.onnx: .*{words}"):
        load_module(path)


def refused(path):
    """Return the one line that says why a file is rejected."""
    with pytest.raises(FormatError) as caught:
        load_module(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and "\n" not in line
    return line.removeprefix(f"{path}: ")


def test_onnx_operator_that_tvm_lacks_is_named_with_its_node(saved, capfd):
    builder = networks.Builder()
    data = builder.node("StringNormalizer", ["text"])
    line = refused(saved(builder.model(data, {"text": [3]}, [3])))
    operator = "TVM has no operator StringNormalizer (node stringnormalizer_0)"
    assert line == f"{operator}; export the model without it"
    builder = networks.Builder()
    data = builder.node("TopK", [builder.node("Relu", ["image"]), "count"])
    model = builder.model(data, {"image": [3], "count": [1]}, [2])
    model.graph.node[1].output.append("places")
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert refused(saved(model)).startswith("TVM cannot convert TopK (node topk_1): ")
    assert capfd.readouterr().out == ""


def halves(builder, data):
    """Return the first half of the channels, by operators on the shape."""
    zero, one, two = (builder.constant([number], "int64") for number in range(3))
    half = builder.node("Div", [builder.node("Gather", [builder.node("Shape", [data]), one]), two])
    return builder.node("Slice", [data, zero, builder.node("Mul", [half, one]), one])


def rows(builder, data):
    """Return all rows as one, whose number is computed."""
    shape = builder.node("Shape", [data])
    last = builder.node("Gather", [shape, builder.constant([3], "int64")], axis=0)
    sizes = [builder.constant([1], "int64"), builder.constant([-1], "int64"), last]
    return builder.node("Reshape", [data, builder.node("Concat", sizes, axis=0)])


@pytest.mark.parametrize(("middle", "shape"), [(halves, [1, 4, 8, 8]), (rows, [1, 64, 8])])
def test_onnx_sizes_that_operators_compute_are_simplified(middle, shape, saved, monkeypatch):
    builder = networks.Builder()
    data = middle(builder, builder.node("Relu", ["image"]))
    path = saved(builder.model(data, {"image": [1, 8, 8, 8]}, shape))
    main = load_module(path)["main"]
    assert [int(extent) for extent in relax_type(main.body).shape] == shape
    # Alone, TVM refuses the model, or knows no shape.
    monkeypatch.setitem(sys.modules, "onnxsim", None)
    if middle is rows:
        refusal = refused(path)
        assert refusal.startswith("TVM cannot convert ")
        assert refusal.endswith(
            "; onnxsim simplifies some of these models: pip install 'tunedb[onnx]'"
        )
    elif compat.number() > (0, 25):
        assert relax_type(load_module(path)["main"].body).shape is None


def defined(kind, shapes, opset, **attributes):
    """Return a model of one operator, whose inputs have these shapes."""
    builder = networks.Builder()
    inputs = {f"input_{number}": shape for number, shape in enumerate(shapes)}
    node = builder.node(kind, list(inputs), **attributes)
    return builder.model(node, inputs, shapes[0], opset)


def numbered():
    """Return a model with a constant that is no tensor, as exporters write it."""
    builder = networks.Builder()
    half = builder.node("Constant", [], value_float=0.5)
    return builder.model(builder.node("Mul", ["input_0", half]), {"input_0": [2, 8]}, [2, 8])


def with_function():
    """Return a model that has a function of its own."""
    helper = onnx.helper
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    builder = networks.Builder()
    model = builder.model(builder.node("Twice", ["input_0"], domain="own"), {"input_0": [2]}, [2])
    model.functions.append(helper.make_function("own", "Twice", ["a"], ["b"], body, opsets[:1]))
    model.opset_import.append(opsets[1])
    return model


def constant_angles():
    """Return a model whose weights decide what its operator means."""
    model = defined("RotaryEmbedding", [[1, 4, 6, 8], [1, 6, 4], [1, 6, 4]], 23)
    for given in list(model.graph.input)[1:]:
        model.graph.input.remove(given)
        angles = np.linspace(-1, 1, 24, dtype="float32").reshape(1, 6, 4)
        model.graph.initializer.append(onnx.numpy_helper.from_array(angles, given.name))
    return model


DEFINED = {
    "Celu": lambda: defined("Celu", [[2, 8]], 17, alpha=2.0),
    "Swish": lambda: defined("Swish", [[2, 8]], 24, alpha=1.5),
    "SwiGLU of Swish": lambda: defined("SwiGLU", [[2, 8], [2, 8]], 28),
    "RotaryEmbedding": lambda: defined("RotaryEmbedding", [[1, 4, 6, 8], [1, 6, 4], [1, 6, 4]], 23),
    "RotaryEmbedding with constant angles": constant_angles,
    "Attention": lambda: defined("Attention", [[1, 4, 6, 8]] * 3, 23),
    "Constant": numbered,
    "a function": with_function,
}


@pytest.mark.parametrize("name", DEFINED)
def test_operators_that_tvm_lacks_are_replaced_by_their_definitions(name, saved):
    model = DEFINED[name]()
    newest = onnx.defs.onnx_opset_version()
    if model.opset_import[0].version > newest:
        pytest.skip(f"onnx {onnx.__version__} ends with opset {newest}")
    mod = load_module(saved(model))
    rng = np.random.default_rng(0)
    inputs = {}
    for one in model.graph.input:
        shape = [axis.dim_value for axis in one.type.tensor_type.shape.dim]
        inputs[one.name] = rng.normal(size=shape).astype("float32")
    (expected,) = ReferenceEvaluator(model).run(None, inputs)
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, inputs.values())).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_load_module_rejects_onnx_opset_that_is_too_new(saved):
    newest = onnx.defs.onnx_opset_version()
    model = networks.mobile()
    model.opset_import[0].version = newest + 1
    assert refused(saved(model)) == (
        f"opset {newest + 1} is newer than {newest}, the newest of onnx {onnx.__version__}; export "
        f"the model with opset {newest} or an earlier one"
    )


@pytest.fixture
def external(tmp_path):
    """A model whose weights, 100 kB, are in a file beside it."""
    builder = networks.Builder()
    model = builder.model(builder.dense("x", 100, 250, bias=False), {"x": [1, 100]}, [1, 250])
    path = tmp_path / "m.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_load_module_reads_external_data_and_names_missing_data_files(external):
    assert is_relax(load_module(external))
    (external.parent / "w.bin").unlink()
    line = refused(external)
    assert "should be stored in " in line and "w.bin" in line
    assert line.endswith("; export it again, with its external data beside it")


def test_load_module_rejects_model_larger_than_free_memory(external, monkeypatch):
    def load_with(free):
        monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free))
        return load_module(external)

    size = external.stat().st_size
    assert size < 10_000
    for free in (2 * size - 1, 199_999):
        with pytest.raises(PluginError, match=r"m\.onnx: reading the model takes .* GB are free;"):
            load_with(free)
    assert is_relax(load_with(200_000 + 2 * size))


def test_as_module_keeps_names_of_functions_and_rejects_other_types(tools):
    mod = tools.matmul(8)
    assert as_module(mod) is mod
    assert list(prim_funcs(as_module(mod["main"]))) == ["main"]
    named = mod["main"].with_attr("global_symbol", "product")
    assert list(prim_funcs(as_module(named, "other"))) == ["product"]
    with pytest.raises(UsageError, match="a int is not an IRModule"):
        as_module(3)


def test_import_of_module_source_loads_no_framework():
    code = (
        "import sys, tvm\n"  # imports torch itself where it is installed
        "before = set(sys.modules)\n"
        "import tunedb.plugins.metaschedule.module_source\n"
        "print(sorted({'onnx', 'torch', 'xgboost'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
