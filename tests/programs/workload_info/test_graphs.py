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
        n = w.variable("n")
        a = w.buffer("A", "int8", Dynamic(n), 3)
        i = w.variable("v_i")
        block = w.block("copy", [(i, 3, False)], w.store(a[0], w.load(a[0], i), i))
        assert signature_of(w.workload([a], block)) == Signature("main", None, "data_movement", 0)

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_function_with_loop_of_unknown_extent_has_no_operations(self, dialect):
        w = Writer(dialect)
        a = w.buffer("A", "float32", 3)
        i = w.variable("v_i")
        value = w.binary("Add", w.load(a[0], i), w.load(a[0], i))
        block = w.block("add", [(i, 3, False)], w.store(a[0], value, i))
        loop = w.make("For", extent=w.variable("n"), body=block)
        assert signature_of(w.workload([a], loop)) == Signature(
            "main", (("float32", (3,)),), "elementwise", None
        )

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_scalar_parameters_are_not_arguments(self, dialect):
        w = Writer(dialect)
        a = w.buffer("A", "float16", 2, 2)
        scalar = w.variable("n")
        body = w.store(a[0], w.zero())
        assert signature_of(w.workload([(scalar, scalar, []), a], body)).arguments == (
            ("float16", (2, 2)),
        )

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

    def test_sum_of_squares_is_a_reduction(self):
        w = Writer("boxed")
        a, c = w.buffer("A", "float32", 4, 4), w.buffer("C", "float32", 4)
        i, k = w.variable("i"), w.variable("k")
        square = w.binary("Mul", w.load(a[0], i, k), w.load(a[0], i, k))
        body = w.store(c[0], w.binary("Add", w.load(c[0], i), square), i)
        init = w.store(c[0], w.zero(), i)
        block = w.block("C", [(i, 4, False), (k, 4, True)], body, init)
        assert signature_of(w.workload([a, c], block)) == Signature(
            "main", (("float32", (4, 4)), ("float32", (4,))), "reduction", 32
        )

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
        a, c = w.buffer("A", "float32", 4), w.buffer("C", "float32", 1)
        k = w.variable("k")
        body = w.store(c[0], w.binary("Max", w.load(c[0]), w.load(a[0], k)))
        block = w.block(name, [(k, 4, True)], body, init=w.store(c[0], w.zero()))
        assert signature_of(w.workload([a, c], block)).family == family
        assert signature_of(w.workload([a, c], block)).flops == 4

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_padding_is_data_movement_without_operations(self, dialect):
        w = Writer(dialect)
        a = w.buffer("A", "float32", 4)
        i = w.variable("i")
        inside = w.binary("LE", w.constant(1), i)
        shifted = w.load(a[0], w.binary("Sub", i, w.constant(1)))
        value = w.call("if_then_else", inside, shifted, w.zero())
        block = w.block("PadInput", [(i, 6, False)], w.store(a[0], value, i))
        signature = signature_of(w.workload([a], block))
        assert (signature.family, signature.flops) == ("data_movement", 0)

    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_function_call_is_elementwise_and_counts_only_its_argument(self, dialect):
        w = Writer(dialect)
        a = w.buffer("A", "float32", 8)
        i = w.variable("i")
        value = w.call("exp", w.binary("Sub", w.load(a[0], i), w.zero()))
        block = w.block("compute", [(i, 8, False)], w.store(a[0], value, i))
        signature = signature_of(w.workload([a], block))
        assert (signature.family, signature.flops) == ("elementwise", 8)

    def test_fused_function_has_the_family_of_its_anchor(self):
        w = Writer("boxed")
        a, b, c = (w.buffer(name, "float32", 4, 4) for name in "ABC")
        i, j, k = (w.variable(name) for name in "ijk")
        product = w.binary("Mul", w.load(a[0], i, k), w.load(b[0], k, j))
        body = w.store(c[0], w.binary("Add", w.load(c[0], i, j), product), i, j)
        sums = w.block(
            "x", [(i, 4, False), (j, 4, False), (k, 4, True)], body, w.store(c[0], w.zero(), i, j)
        )
        i, j = w.variable("i"), w.variable("j")
        relu = w.store(c[0], w.binary("Max", w.load(c[0], i, j), w.zero()), i, j)
        after = w.block("y", [(i, 4, False), (j, 4, False)], relu)
        both = w.make("SeqStmt", seq=w.array(sums, after))
        root = w.make("BlockRealize", block=w.make("Block", name_hint=w.text("root"),
                      iter_vars=w.array(), init=0, body=both))  # fmt: skip
        signature = signature_of(w.workload([a, b, c], root))
        assert (signature.family, signature.flops) == ("matmul", 2 * 64 + 16)

    def test_block_with_loops_inside_has_unknown_family(self):
        w = Writer("boxed")
        a = w.buffer("A", "float32", 4)
        i = w.variable("i")
        store = w.store(a[0], w.binary("Add", w.load(a[0], i), w.load(a[0], i)), i)
        scan = w.make("For", extent=w.constant(4), body=store)
        signature = signature_of(w.workload([a], w.block("scan", [(i, 4, False)], scan)))
        assert (signature.family, signature.flops) == (None, 16)


class TestBranches:
    @pytest.mark.parametrize("dialect", DIALECTS)
    def test_select_counts_operations_of_costlier_branch(self, dialect):
        w = Writer(dialect)
        a = w.buffer("A", "float32", 4)
        i = w.variable("i")
        one = w.load(a[0], i)
        two = w.binary("Add", w.binary("Mul", one, one), one)
        value = w.make("Select", condition=w.binary("LT", i, i), true_value=one, false_value=two)
        block = w.block("b", [(i, 4, False)], w.store(a[0], value, i))
        assert signature_of(w.workload([a], block)).flops == 8


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
        blocks = [
            w.make("Block", name_hint=name, iter_vars=none, init=none,
                   body=w.make("BufferStore", buffer=none, indices=none, value=value))
            for _ in range(500)
        ]  # fmt: skip
        body = w.make("SeqStmt", seq=w.array(*blocks))
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
