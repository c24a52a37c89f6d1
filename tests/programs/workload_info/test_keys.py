import orjson
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.programs.workload_info import is_rebuildable, signature_of
from tunedb.records import Signature, Workload, WorkloadFormat

F = "float32"
NOTHING = Signature()


def tensor(*shape, dtype=F):
    return ["TENSOR", list(shape), dtype]


def autotvm(name, *args):
    return signature_of(Workload(WorkloadFormat.AUTOTVM, orjson.dumps([name, args, {}])))


def ansor(*key):
    return signature_of(Workload(WorkloadFormat.ANSOR, orjson.dumps(key)))


# A convolution of 1x3x224x224 by 64 kernels of 7x7, stride 2 and padding 3, has 112x112 outputs:
# (224 + 6 - 7) // 2 + 1.
FIRST_LAYER = 2 * 64 * 112 * 112 * 3 * 7 * 7


class TestAutoTVM:
    @pytest.mark.parametrize(
        ("family", "flops", "task"),
        [
            ("conv2d", FIRST_LAYER,
             ["conv2d_nchw.cuda", tensor(1, 3, 224, 224), tensor(64, 3, 7, 7),
              [2, 2], [3, 3, 3, 3], [1, 1], F]),
            ("conv2d", FIRST_LAYER,
             ["topi_nn_conv2d", tensor(1, 3, 224, 224), tensor(64, 3, 7, 7),
              [2, 2], [3, 3], "NCHW", F]),
            ("conv2d", FIRST_LAYER,
             ["topi_nn_conv2d", tensor(1, 224, 224, 3), tensor(7, 7, 3, 64),
              [2, 2], [3, 3], [1, 1], "NHWC", F]),
            ("conv2d", FIRST_LAYER,
             ["topi_nn_conv2d", tensor(224, 224, 3, 1), tensor(7, 7, 3, 64),
              2, 3, "HWCN", F]),
            # Channels and kernel size stand before the strides; a dilation, too, in one of them.
            ("conv2d", FIRST_LAYER,
             ["topi_x86_conv2d_NCHWc", tensor(1, 3, 224, 224), tensor(64, 3, 7, 7),
              3, [7, 7], [2, 2], [3, 3], "NCHW", "NCHW", F]),
            ("conv2d", FIRST_LAYER,
             ["topi_x86_conv2d", tensor(1, 3, 224, 224), tensor(64, 3, 7, 7),
              3, [7, 7], [1, 1], [2, 2], [3, 3], "NCHW", F]),
            # Two blocks of 16 channels each, 4 of 8 kernels: 3x3 on 10x10 outputs, padding 1.
            ("conv2d", 2 * 32 * 10 * 10 * 32 * 9,
             ["conv2d_NCHWc.x86", tensor(1, 2, 10, 10, 16), tensor(4, 2, 3, 3, 16, 8),
              [1, 1], [1, 1, 1, 1], [1, 1], "NCHW16c", "NCHW8c", F]),
            # Eight-bit kernels have seven dimensions: 32 input channels are 2 x 4 x 4.
            ("conv2d", 2 * 32 * 10 * 10 * 32 * 9,
             ["conv2d_NCHWc_int8.cuda", tensor(1, 2, 10, 10, 16, dtype="int8"),
              tensor(4, 2, 3, 3, 4, 8, 4, dtype="int8"),
              [1, 1], [1, 1], [1, 1], "NCHW16c", "NCHW8c", "int32"]),
            # Dilated by 2, a 3x3 kernel covers 5x5: outputs are 10 - 5 + 1 = 6 in each direction.
            ("conv2d", 2 * 6 * 6 * 4 * 8 * 9,
             ["conv2d_nhwc.cuda", tensor(1, 10, 10, 8), tensor(3, 3, 8, 4), 1, 0, 2, F]),
            ("conv2d", 2 * 32 * 14 * 14 // 4 * 512 * 256 * 9,
             ["conv2d_HWNCnc_tensorcore.cuda", tensor(14, 14, 32, 256, dtype="int8"),
              tensor(3, 3, 512, 256, dtype="int8"), [2, 2], [1, 1, 1, 1], [1, 1], "int32"]),
            # VTA: 1x16 channels of 16 become 32 of 16.
            ("conv2d", 2 * 208 * 208 * 32 * 16 * 9,
             ["conv2d_packed.vta", tensor(1, 1, 208, 208, 1, 16, dtype="int8"),
              tensor(2, 1, 3, 3, 16, 16, dtype="int8"),
              [1, 1], [1, 1, 1, 1], [1, 1], "NCHW1n16c", "int32"]),
            ("group_conv2d", 2 * 112 * 112 * 32 * 16 * 9,
             ["group_conv2d_packed.vta", tensor(1, 2, 112, 112, 1, 16, dtype="int8"),
              tensor(2, 1, 3, 3, 16, 16, dtype="int8"),
              [1, 1], [1, 1, 1, 1], [1, 1], 2, "int32"]),
            ("depthwise_conv2d", 2 * 2 * 32 * 112 * 112 * 9,
             ["depthwise_conv2d_nhwc.mali", tensor(1, 112, 112, 32), tensor(3, 3, 32, 2),
              [1, 1], [1, 1], [1, 1], F]),
            # as many as the direct one
            ("conv2d_winograd", 2 * 32 * 7 * 7 * 128 * 9,
             ["conv2d_nchw_winograd.mali", tensor(1, 128, 7, 7), tensor(32, 128, 3, 3),
              [1, 1], [1, 1, 1, 1], [1, 1], F]),
            # outputs (32 - 1) * 2 + 4 - 2 = 64
            ("conv2d_transpose", 2 * 64 * 64 * 128 * 3 * 16,
             ["conv2d_transpose_nchw.arm_cpu", tensor(1, 128, 32, 32), tensor(128, 3, 4, 4),
              [2, 2], [1, 1, 1, 1], F, [0, 0]]),
            # (9 - 1) * 2 + 3 - 2 + 1 = 18, (4 - 1) * 2 + 3 - 2 + 1 = 8
            ("conv2d_transpose", 2 * 18 * 8 * 512 * 256 * 9,
             ["conv2d_transpose_nchw.cuda", tensor(1, 512, 9, 4), tensor(512, 256, 3, 3),
              [2, 2], [1, 1, 1, 1], F, [1, 1]]),
            # (128 - 1) * 128 + 512 - 2 * 256 = 16256
            ("conv1d_transpose", 2 * 16256 * 257 * 512,
             ["conv1d_transpose_nchw.cuda", tensor(1, 257, 128), tensor(257, 1, 512),
              [128], [256], F, [0]]),
            # Fields after the type of a tensor are ignored.
            ("conv2d_transpose", 2 * 16256 * 512 * 512,
             ["conv2d_transpose_nchw.cuda", tensor(1, 512, 1, 128),
              [*tensor(512, 1, 1, 512), [0, 0]], [1, 128], [0, 256, 0, 256], F]),
            ("conv3d", 2 * 8 * 14 * 14 * 32 * 16 * 27,
             ["conv3d_ndhwc.cuda", tensor(1, 8, 14, 14, 16), tensor(3, 3, 3, 16, 32),
              [1, 1, 1], [1, 1, 1], [1, 1, 1], F]),
            ("matmul", 2 * 4 * 128 * 256,
             ["dense_packed.vta", tensor(4, 16, 1, 16), tensor(8, 16, 16, 16), None, "int32"]),
            # (5, 7) transposed by (5, 3)
            ("matmul", 2 * 7 * 3 * 5,
             ["matmul_default.x86", tensor(5, 7), tensor(5, 3), None, F, True, False]),
            ("batch_matmul", 2 * 12 * 128 * 96 * 64,
             ["batch_matmul.x86", tensor(12, 128, 64), tensor(12, 96, 64), [12, 128, 96]]),
            # one batch of the second for all of the first
            ("batch_matmul", 2 * 12 * 128 * 96 * 64,
             ["batch_matmul.cuda", tensor(12, 128, 64), tensor(1, 96, 64)]),
        ],
    )  # fmt: skip
    def test_topi_task_has_tensors_family_and_operations(self, family, flops, task):
        name, *args = task
        signature = autotvm(name, *args)
        tensors = [arg for arg in args if isinstance(arg, list) and arg[0] == "TENSOR"]
        assert signature == Signature(
            name, tuple((dtype, tuple(shape)) for _, shape, dtype, *_ in tensors), family, flops
        )

    @pytest.mark.parametrize("name", ["conv2d_no_batching", "tutorial/conv2d"])
    def test_conv2d_of_tutorial_has_tensors_family_and_operations(self, name):
        # N, H, W, CO, CI, KH, KW, strides, padding: 28 by 28 with stride 2 and padding 1 is 14.
        shapes = ((1, 256, 28, 28), (128, 256, 3, 3), (1, 128, 14, 14))
        assert autotvm(name, 1, 28, 28, 128, 256, 3, 3, [2, 2], [1, 1]) == Signature(
            name, tuple((None, shape) for shape in shapes), "conv2d", 2 * 128 * 14 * 14 * 256 * 9
        )

    def test_matmul_of_tutorial_has_tensors_family_and_operations(self):
        shapes = ((512, 256), (256, 128), (512, 128))
        assert autotvm("tutorial/matmul", 512, 256, 128, F) == Signature(
            "tutorial/matmul", tuple((F, shape) for shape in shapes), "matmul", 2 * 512 * 256 * 128
        )

    @pytest.mark.parametrize(
        "task",
        [
            # A kernel transformed for Winograd, other channels, too large, no padding, no layout.
            ["conv2d_nchw_winograd.cuda", tensor(1, 8, 9, 9), tensor(6, 6, 8, 8),
             [1, 1], [1, 1], [1, 1], F],
            ["conv2d_nchw.cuda", tensor(1, 8, 9, 9), tensor(4, 7, 3, 3), [1, 1], [1, 1], F],
            ["conv2d_nchw.cuda", tensor(1, 8, 2, 2), tensor(4, 8, 3, 3), [1, 1], [0, 0], F],
            ["conv2d_nchw.cuda", tensor(1, 8, 9, 9), tensor(4, 8, 3, 3), [1, 1]],
            ["conv2d_nchw.cuda", tensor(1, 8, 9, 9), tensor(4, 8, 3, 3), [0, 0], [0, 0], F],
            ["conv2d_direct.arm", tensor(1, 8, 9, 9), tensor(4, 8, 3, 3), [1, 1], [0, 0], F],
            ["bitserial_conv2d_nchw.arm", tensor(1, 8, 9, 9), tensor(4, 8, 3, 3), 1, 0, 1, F],
            ["dense.cuda", tensor(1, 8), tensor(4, 7), None, F],
            ["batch_matmul.cuda", tensor(2, 3, 4), tensor(3, 5, 4)],
        ],
    )  # fmt: skip
    def test_tasks_that_cannot_be_counted_have_no_operations(self, task):
        signature = autotvm(*task)
        assert signature.flops is None
        assert signature.family is not None
        assert len(signature.arguments) == 2

    def test_tensors_in_a_list_are_arguments(self):
        signature = autotvm("concatenate.cuda", [tensor(1, 2), tensor(3, 2)], 0)
        assert signature.arguments == ((F, (1, 2)), (F, (3, 2)))
        assert signature.family == "data_movement"

    def test_one_bad_tensor_makes_all_arguments_unknown(self):
        assert autotvm("dense.x86", tensor(1, 2), tensor(3, -2)).arguments is None


class TestAnsor:
    @pytest.mark.parametrize(
        ("key", "shapes", "family", "flops"),
        [
            (["matmul_layer", 128, 4032, 1000], [(128, 4032), (4032, 1000), (128, 1000)],
             "matmul", 2 * 128 * 4032 * 1000),
            (["batch_matmul_layer", 2, 3, 4, 5, 6], [(6, 4, 5), (6, 5, 6), (6, 4, 6)],
             "batch_matmul", 2 * 6 * 4 * 5 * 6),
            # nnfusion's order, "SAME": (42 + 2 - 3) // 2 + 1 = 21
            (["conv2d_layer", 8, 16, 42, 42, 32, 3, 3, 2, "SAME"],
             [(8, 16, 42, 42), (32, 16, 3, 3), (8, 32, 21, 21)],
             "conv2d", 2 * 8 * 32 * 21 * 21 * 16 * 9),
            # "VALID": (230 - 7) // 2 + 1 = 112
            (["conv2d_layer", 128, 3, 230, 230, 64, 7, 7, 2, "VALID"],
             [(128, 3, 230, 230), (64, 3, 7, 7), (128, 64, 112, 112)],
             "conv2d", 128 * FIRST_LAYER),
            # the tutorial's order: n, h, w, co, ci; a bias is added
            (["conv2d_layer", 1, 7, 14, 512, 256, 3, 3, [1, 1], [1, 1]],
             [(1, 256, 7, 14), (512, 256, 3, 3), (1, 512, 1, 1), (1, 512, 7, 14)],
             "conv2d", 2 * 512 * 7 * 14 * 256 * 9),
            (["depthwise_conv2d_layer", 128, 42, 165, 165, 5, 5, 2, "SAME"],
             [(128, 42, 165, 165), (42, 1, 5, 5), (128, 42, 83, 83)],
             "depthwise_conv2d", 2 * 128 * 42 * 83 * 83 * 25),
            (["pool_layer", "avg", 128, 42, 165, 165, 3, 3, 2, "SAME"],
             [(128, 42, 165, 165), (128, 42, 83, 83)],
             "pooling", 128 * 42 * 83 * 83 * 9),
            (["reduction_layer", [128, 2048, 7, 7], [2, 3], False],
             [(128, 2048, 7, 7), (128, 2048)], "reduction", 128 * 2048 * 49),
            (["reduction_layer", [65536, 1024], 1, True], [(65536, 1024), (65536, 1)],
             "reduction", 65536 * 1024),
            (["relu_layer", 128, 64, 7, 7], [(128, 64, 7, 7), (128, 64, 7, 7)],
             "elementwise", 128 * 64 * 49),
        ],
    )  # fmt: skip
    def test_key_of_public_log_has_shapes_family_and_operations(self, key, shapes, family, flops):
        arguments = tuple((None, shape) for shape in shapes)
        assert ansor(*key) == Signature(key[0], arguments, family, flops)

    def test_matmul_add_takes_data_type_from_its_key(self):
        assert ansor("matmul_add", 128, 64, 32, "float16") == Signature(
            "matmul_add",
            tuple(("float16", s) for s in [(128, 64), (64, 32), (128, 32), (128, 32)]),
            "matmul",
            2 * 128 * 64 * 32,
        )

    def test_sparse_dense_counts_only_stored_blocks(self):
        signature = ansor("sparse_dense", 512, 512, 512, [9831, 16, 1], [9831], [33], F)
        assert signature.arguments == (
            (F, (512, 512)), (F, (9831, 16, 1)), ("int32", (9831,)), ("int32", (33,)),
            (F, (512, 512)), (F, (512, 512)),
        )  # fmt: skip
        assert (signature.family, signature.flops) == ("sparse_dense", 2 * 512 * 9831 * 16)

    @pytest.mark.parametrize(
        ("key", "expected"),
        [
            (["my_softmax", tensor(4, 8, dtype="int8"), -1],
             Signature("my_softmax", (("int8", (4, 8)),), "softmax")),
            (["mystery", 1, [2, 3], "x"], Signature("mystery")),
            # Known functions with other arguments.
            (["matmul_layer", 2, 3], Signature("matmul_layer", family="matmul")),
            (["matmul_layer", 2, True, 3], Signature("matmul_layer", family="matmul")),
            # Neither nnfusion's padding nor the tutorial's.
            (["conv2d_layer", 1, 7, 7, 8, 8, 3, 3, 1, 1],
             Signature("conv2d_layer", family="conv2d")),
            # Hashes.
            (["b32ed43fb351136894c322ee49097a1a"], NOTHING),
            (["d7b65649a4dd54becea0a52aabbc5af5", 1, 1000, 1, 1000], NOTHING),
            (["4cfcb37b4f152227e1c6b924f6e39d33", [100, 8, 4], [], [100, 32]],
             Signature(arguments=((None, (100, 8, 4)), (None, ()), (None, (100, 32))))),
        ],
    )  # fmt: skip
    def test_signature_has_what_a_key_tells(self, key, expected):
        assert ansor(*key) == expected

    def test_qualified_name_of_function_is_recognised(self):
        assert ansor("my.models.matmul_layer", 2, 3, 4).flops == 2 * 2 * 3 * 4

    def test_huge_extents_have_operations_as_float_or_no_arguments(self):
        most = 2**62
        assert ansor("relu_layer", most, most, most, most).flops == float(most) ** 4
        assert ansor("batch_matmul_layer", *[most] * 5) == Signature(
            "batch_matmul_layer", family="batch_matmul"
        )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            [7, [["TENSOR", F, [128, 4]], ["TENSOR", "int8", []]]],
            Signature(arguments=((F, (128, 4)), ("int8", ()))),
        ),
        *((value, NOTHING) for value in ([7, None], [7], 7, [7, [["TENSOR", F]]])),
        *((value, NOTHING) for value in ([7, [["SHAPE", F, [1]]]], [7, [["TENSOR", 1, []]]])),
    ],
)
def test_arguments_are_the_tensors_of_a_valid_value(value, expected):
    workload = Workload(WorkloadFormat.ARGUMENTS, orjson.dumps(value))
    assert signature_of(workload) == expected


@pytest.mark.parametrize(
    ("format", "versions", "expected"),
    [
        ("tvm-graph", ["0.27.0", "0.27.0.post1", "0.27.0rc0", "0.27.3"], True),
        ("tvm-graph", ["0.26.0", "0.22.0", "0.27.dev0", "0.270.0", "0.28.0", "", None], False),
        *((name, ["0.27.0"], False) for name in ("tvm-nodes", "ansor-key", "unheard-of")),
    ],
)
def test_only_graphs_of_current_tvm_are_rebuildable_without_script(format, versions, expected):
    for version in versions:
        assert is_rebuildable(format, version, has_script=False) is expected, version
        assert is_rebuildable(format, version, has_script=True)


_sizes = st.integers(-1, 9) | st.just(2**62)
_values = st.recursive(
    st.none()
    | st.booleans()
    | _sizes
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["TENSOR", "NCHW", "SAME", "float32", "", "a\0b"])
    | st.builds(lambda shape: ["TENSOR", shape, "int8"], st.lists(_sizes, max_size=7)),
    lambda items: st.lists(items, max_size=5) | st.dictionaries(st.text(max_size=3), items),
    max_leaves=12,
)
_names = st.sampled_from(
    ["conv2d_nchw.cuda", "dense.x86", "batch_matmul.cuda", "conv2d_transpose_nchw.x86",
     "conv2d_layer", "pool_layer", "reduction_layer", "relu_layer", "sparse_dense", "matmul_add",
     "conv2d_no_batching", "batch_matmul_layer", "topi_x86_conv2d", "depthwise_conv2d_NCHWc.x86",
     "0" * 32]
)  # fmt: skip
_args = st.lists(_values, max_size=9) | st.lists(_sizes, max_size=9)


@given(format=st.sampled_from(WorkloadFormat), body=st.binary() | _values.map(orjson.dumps))
@settings(max_examples=examples(100))
def test_signature_of_any_bytes_never_raises(format, body):
    signature_of(Workload(format, body))


@given(name=_names, args=_args)
@settings(max_examples=examples(150))
def test_signature_of_any_arguments_can_be_stored(name, args):
    for signature in (autotvm(name, *args), ansor(name, *args)):
        orjson.dumps([signature.function, signature.arguments, signature.flops])


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b"\xff", b"null", b'{"nodes":[]}', b"[[]]"])
def test_damaged_workloads_have_an_empty_signature(body):
    for format in (*WorkloadFormat, "of-a-newer-tunedb"):
        assert signature_of(Workload(format, body)) == NOTHING, format
