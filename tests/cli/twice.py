"""A module of the user's, as commands take one: a file of TVMScript."""

TWICE = """
@T.prim_func(s_tir=True)
def twice(A: T.Buffer((32,), "float32"), B: T.Buffer((32,), "float32")):
    T.func_attr({"tirx.noalias": True})
    for i in range(32):
        with T.sblock("B"):
            v = T.axis.spatial(32, i)
            B[v] = A[v] * T.float32(2)
"""
