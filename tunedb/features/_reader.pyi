from collections.abc import Callable
from typing import Any

from ._nest import Nest

ROLES: dict[str, tuple[str, ...]]

class Reader:
    def __init__(
        self,
        object_type: type,
        types: dict[str, list[tuple[int, dict[str, int]]]],
        ops: dict[int, int],
        described: dict[int, tuple[bool, bool, list[tuple[int, bool]]]],
        type_offset: int,
        dtype_is_inline: bool,
        int_size: int,
        operators: dict[int, tuple[int, bool, int]],
        function_call: int,
        dec_ref: int,
        map_get: int,
        list_functions: Callable[[Any], list[tuple[str, Any]]],
    ) -> None: ...
    def read(self, module: Any, nest: Nest | None = None) -> Nest: ...
    def unknown(self, nest: Nest) -> dict[int, int]: ...
