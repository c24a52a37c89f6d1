"""Lines of auto_scheduler and AutoTVM, written by hand."""


def ansor(lengths, costs, error):
    hardware = [8, 64, 64, 0, 0, 0, 0, 0]
    task = ['["matmul_add", 128, 64]', "llvm -keys=cpu -mcpu=core-avx2", hardware, "", 2, []]
    steps = [
        *(["SP", 2, 0, 128, [4, lengths], 1], ["RF", 2, 1, 0], ["AN", 3, 0, 3]),
        ["PR", 2, 0, "auto_unroll_max_step$64"],
    ]
    return {"i": [task, [[], steps]], "r": [costs, error, 1.5, 1700000000], "v": "v0.6"}


def autotvm(index, costs, error):
    tensors = [["TENSOR", shape, "float32"] for shape in ([1, 512], [1000, 512])]
    target = "cuda -keys=cuda,gpu -max_num_threads=1024"
    entity = [["tile_k", "sp", [-1, 64]], ["unroll", "ot", 0]]
    return {
        "input": [target, "dense_small_batch.gpu", [*tensors, None, "float32"], {}],
        "config": {"index": index, "code_hash": None, "entity": entity},
        "result": [costs, error, 7.5, 1600000000.5],
        "version": 0.2,
        "tvm_version": "0.8.0",
    }


#: Two records of one program in two forms, the second failed in its build.
ANSOR = [ansor(8, [0.002, 0.004], 0), ansor(16, [1e10], 2)]
#: Two configurations of a task, the second failed in its run.
AUTOTVM = [autotvm(7, [1.5e-05], 0), autotvm(8, [1000000000.0], 4)]
