from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._reader import Reader

class Batch:
    def __init__(self, reader: Reader) -> None: ...
    def rows_of(self, modules: Sequence[Any], gpu: bool) -> list[NDArray[np.float64] | None]: ...
