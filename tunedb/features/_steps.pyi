import numpy as np
from numpy.typing import NDArray

class Numbers:
    size: int
    def __init__(self, values: list[float]) -> None: ...

class Formula:
    def __init__(
        self,
        stored: int,
        n_slots: int,
        decisions: list[tuple[int, int, int]],
        n_literals: int,
        constants: list[float],
        lists: list[int],
        operations: list[tuple[int, int, int, int]],
        outputs: list[tuple[int, int, int]],
        row: bytes,
        n_tail: int,
        n_device: int,
        n_task: int,
    ) -> None: ...

def evaluate(
    formulas: list[Formula],
    decisions: list[bytes],
    tails: list[Numbers],
    devices: list[Numbers],
    tasks: list[Numbers],
    rows: NDArray[np.float32],
) -> bytes: ...
