import pytest

from tunedb.programs.workload_info.families import anchor_of, family_of_name

NAMES = {
    "conv2d": ["conv2d_NCHWc.x86", "topi_nn_conv2d", "tutorial/conv2d_no_batching"],
    "conv3d": ["conv3d_ncdhw.cuda"],
    "conv2d_transpose": ["topi_nn_conv2d_transpose_nchw"],
    "conv1d_transpose": ["conv1d_transpose_nchw.cuda"],
    "depthwise_conv2d": ["topi_nn_depthwise_conv2d_nchw", "DepthwiseConv2d", "depth_conv2d_nhwc"],
    "group_conv2d": ["group_conv2d_packed.vta"],
    "conv2d_winograd": ["conv2d_nchw_winograd.cuda"],
    "matmul": [
        *("dense_large_batch.gpu", "T_matmul_NT"),
        "fused_te_matmul3_te_broadcast_to1_te_ewise_add1",
    ],
    "batch_matmul": ["batch_matmul_tensorcore.cuda"],
    "sparse_dense": ["sparse_dense_bsr.x86"],
    "pooling": ["max_pool2d_auto_scheduler_test", "adaptive_pool_avg"],
    "softmax": ["T_softmax_norm"],
    "normalization": ["fused_layer_norm_cast", "norm_bmn_auto_scheduler_test"],
    "reduction": ["te_sum1"],
    "elementwise": ["fused_reshape_add", "relu_layer"],
    "data_movement": ["fused_transpose_reshape2"],
    "attention": ["flash_attention"],
    None: ["main", "compute_1", "address", "summary"],
}


@pytest.mark.parametrize("family", NAMES)
def test_family_of_name_recognises_names_of_operators(family):
    assert [family_of_name(name) for name in NAMES[family]] == [family] * len(NAMES[family])


def test_anchor_of_returns_the_most_specific_family():
    assert anchor_of(["data_movement", None, "conv2d", "elementwise"]) == "conv2d"
    assert anchor_of(["conv2d", "depthwise_conv2d"]) == "depthwise_conv2d"
    assert anchor_of(["matmul", "conv1d"]) == "conv1d"
    assert anchor_of([None]) is None
    assert anchor_of([]) is None
