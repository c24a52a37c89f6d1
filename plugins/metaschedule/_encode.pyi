from collections.abc import Callable
from typing import Any

class Encoder:
    def __init__(
        self,
        object_type: type,
        integer: tuple[int, int, int, int],
        real: tuple[int, int],
        dtype_offset: int | None,
        bool_dtype: int,
        foreign: Callable[[Any], bytes],
    ) -> None: ...
    def encode(self, root: Any) -> tuple[bytes, bytes | None, bytes]: ...
    def dumps(self, root: Any) -> bytes: ...
