from collections.abc import Sequence
from enum import IntEnum
from typing import Any

class Op(IntEnum):
    OP_UNKNOWN = 0
    OP_INT = 1
    OP_FLOAT = 2
    OP_STRING = 3
    OP_VAR = 4
    OP_LOAD = 5
    OP_CALL = 6
    OP_CAST = 7
    OP_ADD = 8
    OP_SUB = 9
    OP_MUL = 10
    OP_DIV = 11
    OP_MOD = 12
    OP_FLOORDIV = 13
    OP_FLOORMOD = 14
    OP_MIN = 15
    OP_MAX = 16
    OP_EQ = 17
    OP_NE = 18
    OP_LT = 19
    OP_LE = 20
    OP_GT = 21
    OP_GE = 22
    OP_AND = 23
    OP_OR = 24
    OP_SHL = 25
    OP_SHR = 26
    OP_BITAND = 27
    OP_BITOR = 28
    OP_BITXOR = 29
    OP_NOT = 30
    OP_BITNOT = 31
    OP_SELECT = 32
    OP_RAMP = 33
    OP_BROADCAST = 34
    OP_SHUFFLE = 35
    OP_LET = 36
    OP_END = 37

class Call(IntEnum):
    CALL_OTHER = 0
    CALL_IF_THEN_ELSE = 1
    CALL_LIKELY = 2

class ForKind(IntEnum):
    SERIAL = 0
    PARALLEL = 1
    VECTORIZED = 2
    UNROLLED = 3
    THREAD_BINDING = 4

class Tag(IntEnum):
    TAG_NONE = 0
    BLOCK_X = 1
    BLOCK_Y = 2
    BLOCK_Z = 3
    THREAD_X = 4
    THREAD_Y = 5
    THREAD_Z = 6
    VTHREAD = 7
    TAG_OTHER = 8

class VarKind(IntEnum):
    VAR_FREE = 0
    VAR_LOOP = 1
    VAR_LET = 2
    VAR_BLOCK = 3

class StmtKind(IntEnum):
    STMT_STORE = 0
    STMT_EVALUATE = 1
    STMT_CONDITION = 2
    STMT_LET = 3
    STMT_OTHER = 4

class BufferKind(IntEnum):
    BUFFER_UNDECLARED = 0
    BUFFER_PARAMETER = 1
    BUFFER_ALLOCATED = 2
    BUFFER_MATCHED = 3

class IterKind(IntEnum):
    ITER_SPATIAL = 0
    ITER_THREAD = 1
    ITER_REDUCE = 2
    ITER_ORDERED = 3
    ITER_OPAQUE = 4

class Nest:
    n_nodes: int
    n_args: int
    n_vars: int
    n_loops: int
    n_stmts: int
    n_buffers: int
    n_blocks: int
    n_iters: int
    n_functions: int
    n_text: int
    follows_025: bool
    def dump(self) -> dict[str, list[dict[str, Any]]]: ...

class NestBuilder:
    nest: Nest
    def int_(self, value: int, code: int = ..., bits: int = ...) -> int: ...
    def float_(self, value: float, bits: int = ..., code: int = ...) -> int: ...
    def node(
        self,
        op: int,
        operands: Sequence[int],
        code: int = ...,
        bits: int = ...,
        lanes: int = ...,
        value: int = ...,
    ) -> int: ...
    def load(self, buffer: int, indices: Sequence[int]) -> int: ...
    def call(
        self,
        which: int,
        arguments: Sequence[int],
        code: int = ...,
        bits: int = ...,
        effects: bool = ...,
    ) -> int: ...
    def free_var(self, name: str, code: int = ..., bits: int = ...) -> int: ...
    def loop_var(self, loop: int) -> int: ...
    def buffer(
        self,
        name: str,
        shape: Sequence[int],
        kind: int = ...,
        code: int = ...,
        bits: int = ...,
        scope: str = ...,
    ) -> int: ...
    def set_shape(self, buffer: int, nodes: Sequence[int]) -> None: ...
    def match(self, buffer: int, source: int, region: Sequence[int]) -> None: ...
    def open_function(self, name: str = ...) -> int: ...
    def close_function(self) -> None: ...
    def open_loop(
        self,
        name: str,
        extent: int | tuple[int],
        min: int | tuple[int] = ...,
        kind: int = ...,
        tag: int = ...,
        auto_unroll: int = ...,
        bits: int = ...,
        again: int = ...,
    ) -> int: ...
    def close_loop(self) -> None: ...
    def open_block(self, name: str, iters: Sequence[tuple[int, int, int]] = ...) -> int: ...
    def close_block(self) -> None: ...
    def set_predicate(self, node: int) -> None: ...
    def set_init(self, init: bool) -> None: ...
    def open_condition(self, node: int) -> int: ...
    def close_condition(self) -> None: ...
    def store(self, buffer: int, indices: Sequence[int], value: int) -> int: ...
    def evaluate(self, value: int) -> int: ...
