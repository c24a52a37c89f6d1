"""Do compiled matrix products compute what NumPy computes?"""

import numpy as np
import tvm


def assert_multiplies(function, rows, columns=None, inner=None):
    """Assert that a compiled function multiplies matrices, which are square by default."""
    columns, inner, rng = columns or rows, inner or rows, np.random.default_rng(0)
    a, b = (rng.random(shape, "float32") for shape in ((rows, inner), (inner, columns)))
    out = tvm.runtime.empty((rows, columns), "float32")
    function(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    np.testing.assert_allclose(out.numpy(), a @ b, rtol=1e-5)
