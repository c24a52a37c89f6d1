"""TVMScript of modules that commands read from a file of the user."""


def function(name, extent, factor):
    """Return TVMScript of a function that multiplies a vector by a factor."""
    return f"""
@T.prim_func(s_tir=True)
def {name}(A: T.Buffer(({extent},), "float32"), B: T.Buffer(({extent},), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    for i in range({extent}):
        with T.sblock("B"):
            v = T.axis.spatial({extent}, i)
            B[v] = A[v] * T.float32({factor})
"""


TWICE = function("twice", 32, 2)

_FUNCTIONS = TWICE + function("thrice", 48, 3)

#: The module ``Kernels`` of two functions.
KERNELS = f"""
from tvm.script import ir as I
from tvm.script import tirx as T


@I.ir_module
class Kernels:{_FUNCTIONS.replace(chr(10), chr(10) + "    ")}
"""
