import numpy as np
from numpy.typing import NDArray

from ._nest import Nest

Touch = tuple[str, int, int, int, int, int, int]

def axes(
    nest: Nest,
) -> list[tuple[str, int, int, int, int, int, tuple[int, int, int], list[Touch]]]: ...
def flat(nest: Nest, take_log: bool = ...) -> NDArray[np.float64]: ...
