import numpy as np
from numpy.typing import NDArray

from ._nest import Nest

class PerStore:
    n_rows: int
    n_columns: int

def per_store(
    nest: Nest,
    *,
    flavour: str,
    gpu: bool,
    buffers_per_store: int = ...,
    curve_samples: int = ...,
    cache_line: int = ...,
) -> NDArray[np.float64]: ...
