import itertools
import sys

import orjson
import pytest
from by_hand import DIALECTS, Dynamic, Writer, contraction
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.programs.workload_info import signature_of
from tunedb.records import Signature, Workload, WorkloadFormat

NOTHING = Signature()


def matmul(dialect, name="compute"):
    return contraction(dialect, {"i": 4, "j": 5}, {"k": 6}, ["i", "k"], ["k", "j"], name)


def of_one_block(dialect, value, *, name="compute", extent=4, inside=False):
    """Return ``A[i] = value(w, A[i], i)`` for each i; `inside`: in a loop in the block."""
    w = Writer(dialect)
    a, i = w.buffer("A", "float32", 4), w.variable("i")
    body = w.store(a[0], value(w, w.load(a[0], i), i), i)
    if inside:
        body = w.make("For", extent=w.constant(4), body=body)
    block = w.block(name, [(i, 4, False)], body)
    if extent != 4:
        block = w.make("For", extent=w.variable(extent), body=block)
    return w.workload([a], block)


def doubled(w, load, _):
    return w.binary("Add", load, load)


def padded(w, load, i):
    return w.call("if_then_else", w.binary("LE", w.constant(1), i), load, w.zero())


def exponential(w, load, _):
    return w.call("exp", w.binary("Sub", load, w.zero()))


def selected(w, load, i):
    """Return a selection whose second branch has two operations."""
    two = w.binary("Add", w.binary("Mul", load, load), load)
    return w.make("Select", condition=w.binary("LT", i, i), true_value=load, false_value=two)


class TestFunction:
    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_signature_has_name_arguments_family_and_operations(self, dialect):
        assert signature_of(matmul(dialect)) == Signature(
            "main",
            (("float32", (64, 64)), ("float32", (64, 64)), ("float32", (4, 5))),
            "matmul",
            2 * 4 * 5 * 6,
        )

    @pytest.mark.parametrize("version", ["0.25.0.post1", "0.26.0", "0.27.0"])
    def test_signature_reads_graphs_that_tvm_wrote(self, goldens, version):
        graph = orjson.loads((goldens / f"matmul-{version}.json").read_bytes())
        del graph["metadata"]
        assert signature_of(Workload(WorkloadFormat.GRAPH, orjson.dumps(graph))) == Signature(
            "main",
            (("float32", (16, 32)), ("float32", (32, 24)), ("float32", (16, 24))),
            "matmul",
            24576.0,  # 2 * 16 * 32 * 24
        )

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_function_of_unknown_extent_has_no_arguments(self, dialect):
        w = Writer(dialect)
        a, i = w.buffer("A", "int8", Dynamic(w.variable("n")), 3), w.variable("v_i")
        block = w.block("copy", [(i, 3, False)], w.store(a[0], w.load(a[0], i), i))
        assert signature_of(w.workload([a], block)) == Signature("main", None, "data_movement", 0)

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_function_with_loop_of_unknown_extent_has_no_operations(self, dialect):
        assert signature_of(of_one_block(dialect, doubled, extent="n")) == Signature(
            "main", (("float32", (4,)),), "elementwise", None
        )

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_scalar_parameters_are_not_arguments(self, dialect):
        w = Writer(dialect)
        a, scalar = w.buffer("A", "float16", 2, 2), w.variable("n")
        workload = w.workload([(scalar, scalar, []), a], w.store(a[0], w.zero()))
        assert signature_of(workload).arguments == (("float16", (2, 2)),)

    def test_name_determines_family_if_blocks_do_not(self):
        w = Writer("boxed")
        workload = w.workload([], w.make("Evaluate"), name="fused_nn_conv2d_add_relu")
        assert signature_of(workload) == Signature("fused_nn_conv2d_add_relu", None, "conv2d", 0)


class TestFamily:
    @pytest.mark.parametrize(
        ("family", "spatial", "reduction", "data", "kernel"),
        [
            ("matmul", "ij", "k", ["i", "k"], ["j", "k"]),
            ("matmul", "i", "k", ["i", "k"], ["k"]),
            ("batch_matmul", "bij", "k", ["b", "i", "k"], ["b", "k", "j"]),
            ("conv1d", "nlo", "rc", ["n", "l*2+r", "c"], ["r", "c", "o"]),
            ("conv2d", "nohw", "crs", ["n", "c", "h+r", "w+s"], ["o", "c", "r", "s"]),
            ("conv2d", "nohw", "crs", ["n", "o//4+c", "h+r", "w+s"], ["o", "c", "r", "s"]),
            ("conv3d", "nodhw", "crst", ["n", "c", "d+r", "h+s", "w+t"], list("ocrst")),
            ("depthwise_conv2d", "nchw", "rs", ["n", "c", "h*2+r", "w*2+s"], ["c", "r", "s"]),
            ("group_conv2d", "nohw", "crs", ["n", "o//2+c", "h+r", "w+s"], list("ocrs")),
            # The sum of products of equal iterators is no product of matrices.
            ("reduction", "i", "k", ["i", "k"], ["i", "k"]),
            ("reduction", "i", "", ["i"], ["i"]),
        ],
    )
    def test_indexes_of_product_determine_family(self, family, spatial, reduction, data, kernel):
        extents = dict.fromkeys(spatial, 4)
        workload = contraction("boxed", extents, dict.fromkeys(reduction, 3), data, kernel)
        assert signature_of(workload).family == family

    @pytest.mark.parametrize(
        ("name", "family"),
        [
            ("pool_max", "pooling"),
            ("T_softmax_expsum", "softmax"),
            ("rms_norm", "normalization"),
            ("lv7_red", "reduction"),
        ],
    )
    def test_name_of_block_determines_family_of_reduction(self, name, family):
        w = Writer("nodes")
        a, c, k = w.buffer("A", "float32", 4), w.buffer("C", "float32", 1), w.variable("k")
        body = w.store(c[0], w.binary("Max", w.load(c[0]), w.load(a[0], k)))
        block = w.block(name, [(k, 4, True)], body, init=w.store(c[0], w.zero()))
        signature = signature_of(w.workload([a, c], block))
        assert (signature.family, signature.flops) == (family, 4)

    @pytest.mark.parametrize("dialect", DIALECTS)
    @pytest.mark.parametrize(
        ("value", "name", "family", "flops"),
        [
            (padded, "PadInput", "data_movement", 0),
            (exponential, "compute", "elementwise", 4),  # only the argument counts
            (selected, "compute", "elementwise", 2 * 4),  # the costlier branch
        ],
    )
    def test_values_determine_family_and_operations(self, dialect, value, name, family, flops):
        signature = signature_of(of_one_block(dialect, value, name=name))
        assert (signature.family, signature.flops) == (family, flops)

    def test_block_with_loops_inside_has_unknown_family(self):
        signature = signature_of(of_one_block("boxed", doubled, name="scan", inside=True))
        assert (signature.family, signature.flops) == (None, 16)


def _several(names, entry=None):
    w = Writer("plain")
    entries = []
    for name in names:
        attributes = [w.text("global_symbol"), w.text(name)]
        if name == entry:
            attributes += [w.text("tir.is_entry_func"), w.constant(1)]
        attrs = w.make("DictAttrs", __dict__=w.map(*attributes))
        function = w.make("PrimFunc", params=w.array(), attrs=attrs, body=w.make("Evaluate"))
        entries += [w.make("GlobalVar", name_hint=w.text(name)), function]
    return w.finish(w.make("IRModule", functions=w.map(*entries)))


def test_signature_describes_entry_function_or_main():
    assert signature_of(_several(["a", "main", "b"])).function == "main"
    assert signature_of(_several(["a", "main", "b"], entry="b")).function == "b"
    assert signature_of(_several(["a", "b"])) == NOTHING


def test_signature_reads_old_maps_with_text_keys():
    workload = matmul("nodes")
    graph = orjson.loads(workload.body)
    entries = next(n for n in graph["nodes"] if n["type_key"] == "Map")
    entries["keys"], entries["data"] = ["global_symbol"], entries["data"][1:]
    assert signature_of(Workload(workload.format, orjson.dumps(graph))).function == "main"


class TestHostileGraphs:
    def bounded(self, w, root):
        """Return the signature; assert that the number of calls is linear in that of nodes."""
        workload, calls = w.finish(root), itertools.count(1)
        limit = 100 * len(w.nodes) + 1_000

        def count(_frame, event, _argument):
            if event == "call" and next(calls) > limit:
                raise AssertionError(f"more than {limit} calls for {len(w.nodes)} nodes")

        sys.setprofile(count)
        try:
            return signature_of(workload)
        finally:
            sys.setprofile(None)

    def test_node_inside_itself_has_an_empty_signature(self):
        w = Writer("boxed")
        w.make("PrimFunc", params=2, body=3)
        w.array()
        w.make("SeqStmt", seq=4)
        w.array(3, 3)
        assert self.bounded(w, 1) == NOTHING

    def test_expression_that_doubles_4000_times_is_read_in_linear_time(self):
        w = Writer("boxed")
        node = w.zero()
        for _ in range(4_000):
            node = w.binary("Add", node, node)
        function = w.make("PrimFunc", params=w.array(), body=node)
        assert self.bounded(w, function).flops is None

    def test_loops_nested_2000_deep_are_read_in_linear_time(self):
        w = Writer("plain")
        one, node = w.constant(1), w.make("Evaluate")
        for _ in range(2_000):
            node = w.make("For", extent=one, body=node)
        assert self.bounded(w, w.make("PrimFunc", params=w.array(), body=node)).flops == 0

    def test_array_shared_by_10000_statements_is_read_in_linear_time(self):
        w = Writer("plain")
        shared = w.array(*[0] * 10_000)
        statements = [w.make("SeqStmt", seq=shared) for _ in range(10_000)]
        body = w.make("SeqStmt", seq=w.array(*statements))
        assert self.bounded(w, w.make("PrimFunc", params=w.array(), body=body)) == NOTHING

    def test_expression_shared_by_500_blocks_is_read_in_linear_time(self):
        w = Writer("plain")
        value = w.zero()
        for _ in range(2_000):
            value = w.binary("Div", value, value)
        name, none = w.text("x"), w.array()
        store = w.make("BufferStore", buffer=none, indices=none, value=value)
        block = {"name_hint": name, "iter_vars": none, "init": none, "body": store}
        body = w.make("SeqStmt", seq=w.array(*(w.make("Block", **block) for _ in range(500))))
        assert self.bounded(w, w.make("PrimFunc", params=none, body=body)).arguments is None

    @pytest.mark.parametrize("value", ["9" * 5000, "1e3", "", 7, None, "-1", str(2**63)])
    def test_graph_with_invalid_numbers_has_no_arguments_and_operations(self, value):
        graph = orjson.loads(matmul("nodes").body)
        for node in graph["nodes"]:
            if node["type_key"] == "IntImm":
                node["attrs"]["value"] = value
        signature = signature_of(Workload(WorkloadFormat.NODES, orjson.dumps(graph)))
        assert (signature.arguments, signature.flops) == (None, None)

    def test_function_name_with_nul_character_is_omitted(self):
        w = Writer("boxed")
        workload = w.workload([], w.make("Evaluate"), name="a\0b")
        assert signature_of(workload) == Signature(flops=0)


_values = st.none() | st.booleans() | st.integers(-2, 120) | st.floats() | st.text(max_size=4)
_json = st.recursive(
    _values,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=4), v),
    max_leaves=8,
)


@given(dialect=st.sampled_from(DIALECTS), data=st.data())
@settings(max_examples=examples(200))
def test_signature_of_mutated_graphs_never_raises(dialect, data):
    workload = matmul(dialect)
    graph = orjson.loads(workload.body)
    for _ in range(data.draw(st.integers(1, 4))):
        node = data.draw(st.sampled_from(graph["nodes"]))
        if not isinstance(node, dict):
            continue
        fields = node.get("attrs", node.get("data"))
        holder = fields if isinstance(fields, dict | list) and fields else node
        keys = range(len(holder)) if isinstance(holder, list) else sorted(holder)
        other = st.integers(0, 120).map(str) if dialect == "nodes" else st.integers(0, 120)
        holder[data.draw(st.sampled_from(keys))] = data.draw(other | _json)
    orjson.dumps(signature_of(Workload(workload.format, orjson.dumps(graph))).arguments)
