from collections.abc import Sequence
from typing import Any

from ....features._nest import Nest

BOUND: int
MATCHED: int
COPIED: int

def prepare(
    symbols: Sequence[int],
    functions: Sequence[Any],
    fields: Sequence[int],
    integer: int,
    value_is_any: bool,
    constants: Any,
) -> None: ...
def addresses() -> tuple[int, int, int, int, int]: ...
def begin() -> None: ...
def found() -> int: ...
def is_settled(nest: Nest) -> bool: ...
