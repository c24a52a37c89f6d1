from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PACKED: int
LIST: int
FIRST: int

def split_lists(
    rows: Sequence[bytes | None], kinds: NDArray[np.int8]
) -> tuple[bytes, bytes, bytes]: ...
