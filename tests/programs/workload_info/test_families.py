import pytest

from tunedb.programs.workload_info.families import anchor_of, family_of_name


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("conv2d_NCHWc.x86", "conv2d"),
        ("topi_nn_conv2d", "conv2d"),
        ("tutorial/conv2d_no_batching", "conv2d"),
        ("conv3d_ncdhw.cuda", "conv3d"),
        ("topi_nn_conv2d_transpose_nchw", "conv2d_transpose"),
        ("conv1d_transpose_nchw.cuda", "conv1d_transpose"),
        ("topi_nn_depthwise_conv2d_nchw", "depthwise_conv2d"),
        ("DepthwiseConv2d", "depthwise_conv2d"),
        ("depth_conv2d_nhwc", "depthwise_conv2d"),
        ("group_conv2d_packed.vta", "group_conv2d"),
        ("conv2d_nchw_winograd.cuda", "conv2d_winograd"),
        ("dense_large_batch.gpu", "matmul"),
        ("T_matmul_NT", "matmul"),
        ("fused_te_matmul3_te_broadcast_to1_te_ewise_add1", "matmul"),
        ("batch_matmul_tensorcore.cuda", "batch_matmul"),
        ("sparse_dense_bsr.x86", "sparse_dense"),
        ("max_pool2d_auto_scheduler_test", "pooling"),
        ("adaptive_pool_avg", "pooling"),
        ("T_softmax_norm", "softmax"),
        ("fused_layer_norm_cast", "normalization"),
        ("norm_bmn_auto_scheduler_test", "normalization"),
        ("te_sum1", "reduction"),
        ("fused_reshape_add", "elementwise"),
        ("relu_layer", "elementwise"),
        ("fused_transpose_reshape2", "data_movement"),
        ("flash_attention", "attention"),
        ("main", None),
        ("compute_1", None),
        ("address", None),
        ("summary", None),
    ],
)
def test_family_of_a_name(name, family):
    assert family_of_name(name) == family


def test_anchor_is_the_most_telling():
    assert anchor_of(["data_movement", None, "conv2d", "elementwise"]) == "conv2d"
    assert anchor_of(["conv2d", "depthwise_conv2d"]) == "depthwise_conv2d"
    assert anchor_of(["matmul", "conv1d"]) == "conv1d"
    assert anchor_of([None]) is None
    assert anchor_of([]) is None
