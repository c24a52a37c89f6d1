import pytest
from hypothesis import given
from hypothesis import strategies as st
from observing import elementwise

from tunedb.advisor import loading
from tunedb.errors import FormatError
from tunedb.formats.gpu.kernels import kernel_workload
from tunedb.programs.metaschedule.trace import split_trace
from tunedb.records import Trace, Workload, WorkloadFormat

WORKLOAD = kernel_workload("scale", [4096])


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("matmul", "matmul"),
        ("vectorAdd(float const *, float const *, float*, int)", "vectorAdd"),
        ("void mergeSortSharedKernel<unsigned int=1>(unsigned int*, int)", "mergeSortSharedKernel"),
        ("void sp::kernel1Tex<unsigned int, float, (int)2>(a, b)", "sp::kernel1Tex"),
        ("void a::b<c<d>, e>::f<g>(h<i>)", "a::b::f"),
        ("void (anonymous namespace)::f<int>(int)", "(anonymous)::f"),
        ("matrixMulCUDA<int=8>", "matrixMulCUDA"),
        ("  spaces  ", "spaces"),
        ("", ""),
        ("<<>", "<<>"),
    ],
)
def test_plain_name_strips_arguments_and_templates(kernel, name):
    assert loading.plain_name(kernel) == name


@given(st.text(max_size=30))
def test_plain_name_accepts_any_text(kernel):
    assert isinstance(loading.plain_name(kernel), str)


def key(parameters, block=("x",), workload=WORKLOAD, kernel="scale"):
    return loading.parameter_key(workload, kernel, parameters, set(block))


def test_parameter_key_ignores_block_parameters_and_order():
    assert key({"x": 32, "tile": 2}) == key({"tile": 2, "x": 64})
    assert key({"x": 32, "tile": 2}, ()) != key({"x": 64, "tile": 2}, ())
    assert key({"x": 32, "tile": 2, "unroll": 1}) == key({"unroll": 1, "tile": 2, "x": 1})


@pytest.mark.parametrize(
    "other",
    [
        key({"x": 32, "tile": 4}),
        key({"x": 32, "tile": "2"}),
        key({"x": 32}),
        key({"x": 32, "tile": 2, "more": 1}),
        key({"x": 32, "tile": 2}, kernel="other"),
        key({"x": 32, "tile": 2}, workload=kernel_workload("scale", [2048])),
    ],
)
def test_parameter_key_depends_on_everything_but_the_block(other):
    assert other != key({"x": 32, "tile": 2})


def test_keys_of_different_kinds_differ():
    trace = Trace(b"[]", None, b"[[],[],[]]")
    keys = {
        key({}),
        loading.problem_key(WORKLOAD, "scale", 1),
        loading.problem_key(WORKLOAD, "scale", 2),
        loading.program_key(WORKLOAD, "scale", trace),
        loading.program_key(Workload(WorkloadFormat.NODES, b"{}", "w"), "scale", trace),
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("names", "block", "says"),
    [
        (["block_x", "grid_x", "grid_y"], {"block_x"}, True),
        (["grid.x"], set(), True),
        (["block_x"], {"block_x"}, False),
        (["block_x", "grid_x", "tile"], {"block_x"}, False),
        (["grid_width"], set(), False),
        ([], set(), False),
    ],
)
def test_is_geometry_requires_only_block_and_grid_parameters(names, block, says):
    assert loading.is_geometry(names, block) is says


def test_problems_differ_for_two_sizes_of_one_kernel():
    """modulateAndNormalize of convolutionFFT2D is launched for two sizes of a picture."""
    first, second = ((256, 1, 1), (8200, 1, 1)), ((256, 1, 1), (8320, 1, 1))
    found = loading.problems([first, second, ((128, 1, 1), (16400, 1, 1))])
    assert found[0] == found[2] == 8200 * 256 != found[1]
    assert loading.problems([]) == []


@given(
    st.integers(1, 100_000),
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 8)), min_size=1, max_size=6),
)
def test_problems_are_equal_for_any_blocks_that_cover_one_size(side, blocks):
    """Along both axes there are as many blocks as the problem needs."""
    launches = [((x, y, 1), (-(-side // x), -(-side // y), 1)) for x, y in blocks]
    assert len(set(loading.problems(launches))) == 1


@given(st.integers(1, 1024), st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True))
def test_problems_differ_for_different_grids_of_one_block(threads, grids):
    launches = [((threads, 1, 1), (grid, 1, 1)) for grid in grids]
    assert len(set(loading.problems(launches))) == len(grids)


@given(st.permutations(range(5)))
def test_problems_do_not_depend_on_the_order_of_launches(order):
    launches = [((2**i, 1, 1), (-(-1000 * (1 + i % 2) // 2**i), 1, 1)) for i in range(5)]
    found = loading.problems([launches[i] for i in order])
    assert [found[order.index(i)] for i in range(5)] == loading.problems(launches)


def test_masked_trace_masks_only_bound_extents():
    instructions, decisions = loading.masked_trace(elementwise(64))
    # Masked: the bound part of the tile, and the thread extent; not vthread or the unroll step.
    assert decisions == [[2, [None, 1, 4]], [6, None], [10, 1]]
    splits = [inputs for kind, inputs, _, _ in instructions if kind == "Split"]
    assert splits == [["l2", None, "v4", "v5"], ["l7", None, None, 2]]
    assert [kind for kind, *_ in instructions][-1] == "Annotate"


def test_masked_trace_masks_bound_literals():
    """Early releases of TVM split by a literal."""

    def masked(threads):
        instructions = [
            ["GetSBlock", [], ["T", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l1"]],
            ["Split", ["l1", None, threads, 4], [1, 0], ["l2", "l3", "l4"]],
            ["Bind", ["l3"], ["threadIdx.x"], []],
        ]
        return loading.masked_trace(split_trace(instructions, []))

    assert masked(32) == masked(64)
    assert masked(32)[0][2][1] == ["l1", None, None, 4]


def test_masked_trace_rejects_damaged_traces():
    for decisions in (b"no json", b"[[],[1],[]]", b"[]"):
        with pytest.raises(FormatError):
            loading.masked_trace(Trace(b"[]", None, decisions))
