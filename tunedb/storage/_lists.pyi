from collections.abc import Sequence
from typing import Any

PACKED: int
LIST: int
FIRST: int

def split_lists(rows: Sequence[bytes | None], kinds: bytes) -> tuple[bytes, bytes, bytes]: ...
def name_texts(ids: Sequence[object], names: dict[Any, bytes]) -> tuple[bytes, bytes]: ...
def pack_numbers(values: Sequence[float | None], is_float: bool) -> tuple[bytes, bytes | None]: ...
