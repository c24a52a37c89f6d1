"""Instructions of TVM made from the parts of a stored trace.

TVM's own reader only exists together with a schedule (``Trace::ApplyJSONToSchedule``), so what it
does to the JSON, and what the schedule's primitives then put into the trace, is repeated here type
by type (``src/s_tir/schedule/trace.cc``, ``traced_schedule.cc``): the mutators read attributes and
decisions without conversions. The tests compare every kind with what TVM makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import orjson
import tvm_ffi
from tvm.s_tir.schedule import _ffi_api as _api
from tvm.tirx import FloatImm, IntImm, Var

from ...traces import INSTRUCTIONS, NO_OUTPUT


class Hole(NamedTuple):
    """An instruction that has literals among its inputs, so it is made for each trace."""

    position: int
    kind: Any
    literal: Callable[[Any], Any]
    inputs: list[Any]
    attrs: Any
    outputs: list[Any]


class Part(NamedTuple):
    """The instructions of a sketch or tail, shared by all traces that have it.

    Parameters
    ----------
    serial : int
        Tells apart two parts that were made from the same sketch.
    instructions : list
        Instructions of TVM, with None for those with holes.
    holes : list of Hole
        What stands at those places.
    variables : dict
        Random variables by name, those of the parts before included.
    """

    serial: int
    instructions: list[Any]
    holes: list[Hole]
    variables: dict[str, Any]


class _Literal:
    """Stands in a hole's inputs where a number of the trace is to be put."""


_LITERAL = _Literal()


def make_part(serial: int, instructions: list[Any], variables: dict[str, Any]) -> Part:
    """Return the part of a trace whose stored form is `instructions`.

    Parameters
    ----------
    serial : int
        The part's own number.
    instructions : list
        ``[kind, inputs, attrs, outputs]`` with ``{}`` for literals.
    variables : dict
        Random variables that parts before this one define.

    Raises
    ------
    ValueError
        For an instruction that TVM 0.27 does not have, or a variable that is not defined.
    """
    part = Part(serial, [], [], dict(variables))
    for kind, inputs, attrs, outputs in instructions:
        _append(part, kind, inputs, attrs, outputs)
    return part


def fill(part: Part, literals: list[Any]) -> list[Any]:
    """Return the part's instructions with the literals of one trace.

    Raises
    ------
    ValueError
        When the part has more or fewer places than there are literals.
    """
    instructions = part.instructions.copy()
    values = iter(literals)
    for hole in part.holes:
        inputs = _put(hole.inputs, values, hole.literal)
        instructions[hole.position] = _api.Instruction(hole.kind, inputs, hole.attrs, hole.outputs)
    if next(values, _LITERAL) is not _LITERAL:
        raise ValueError("more literals than places for them")
    return instructions


def _put(inputs: list[Any], values: Any, convert: Callable[[Any], Any]) -> list[Any]:
    filled = []
    for value in inputs:
        if value is _LITERAL:
            literal = next(values, _LITERAL)
            if literal is _LITERAL:
                raise ValueError("fewer literals than places for them")
            filled.append(convert(literal))
        else:
            filled.append(_put(value, values, convert) if type(value) is list else value)
    return filled


def _append(part: Part, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
    """Add an instruction to a part that is being made."""
    if name not in INSTRUCTIONS:
        raise ValueError(f"unknown instruction {name!r}")
    n_inputs, n_attrs, _ = INSTRUCTIONS[name]
    if n_inputs not in (None, len(inputs)) or n_attrs != len(attrs):
        raise ValueError(f"{name} with {len(inputs)} inputs and {len(attrs)} attributes")
    kind = _kind(name)
    found = [_input(value, part.variables) for value in inputs]
    made = _attrs(name, attrs)
    results = [_output(output, part.variables) for output in outputs]
    if _has_literal(found):
        literal = _expression if name in _EXPRESSION_LITERALS else check_int64
        part.holes.append(Hole(len(part.instructions), kind, literal, found, made, results))
        part.instructions.append(None)
    else:
        part.instructions.append(_api.Instruction(kind, found, made, results))


@cache
def _kind(name: str) -> Any:
    return _api.InstructionKindGet(name)


def _has_literal(inputs: list[Any]) -> bool:
    return any(
        _has_literal(value) if type(value) is list else value is _LITERAL for value in inputs
    )


def _input(value: Any, variables: dict[str, Any]) -> Any:
    """Return an input as TVM has it in memory (``TranslateInputRVs`` in ``trace.cc``)."""
    if type(value) is str:
        found = variables.get(value)
        return _named_input(value, variables) if found is None else found
    if type(value) is list:
        return [_input(item, variables) for item in value]
    if type(value) is bool:
        return _bool(value)
    return _LITERAL if value == {} else value


def _named_input(text: str, variables: dict[str, Any]) -> Any:
    """Return what a string among inputs means that is no random variable."""
    if text == "None":
        return None
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    if text[:1] == "{" and text[-1:] == "}":
        return _index_map(text, variables)
    raise ValueError(f"{text[:80]!r} is used before it is defined")


def _output(name: str, variables: dict[str, Any]) -> Any:
    """Return the random variable of an output and define it."""
    if name == NO_OUTPUT:
        return None
    made = variables[name] = _variable(name)
    return made


@lru_cache(maxsize=4096)
def _variable(name: str) -> Any:
    """Return a random variable of the kind that its name tells, as TVM's names do.

    They only need to be distinct inside of one trace, where names are; and nothing is kept in
    them. So all traces share those of a name, which halves the time to make a sketch.
    """
    if name[:1] == "b":
        return _api.SBlockRV()
    if name[:1] == "l":
        return _api.LoopRV()
    if name[:1] == "v":
        return Var(name, "int32")
    raise ValueError(f"an output named {name!r}")


def _index_map(text: str, variables: dict[str, Any]) -> Any:
    """Return the index map of its JSON.

    TVM replaces free variables by the random variables of their names. Its Python side has no
    substitution that leaves the expressions as they are, so such a map is left to TVM's own way.
    """
    graph = orjson.loads(text)
    nodes = graph["nodes"]
    root = nodes[graph["root_index"]]
    if root["type"] != "tirx.IndexMap":
        raise ValueError(f"an object of type {root['type']} instead of an index map")
    bound = set(nodes[root["data"]["initial_indices"]]["data"])
    for index, node in enumerate(nodes):
        if node["type"] == "ir.Var" and index not in bound:
            name = nodes[node["data"]["name"]]["data"]
            if name in variables:
                raise ValueError(f"an index map over the random variable {name}")
    return tvm_ffi.serialization.from_json_graph_str(text)


# ---- attributes and literals, by kind ------------------------------------------------------------


# Numbers are few and small, and expressions are immutable, so they are shared. Booleans and
# integers have caches of their own, because True and 1 are one key.
@lru_cache(maxsize=4096)
def _int32(value: int) -> Any:
    return IntImm("int32", value)


@lru_cache(maxsize=2)
def _bool(value: bool) -> Any:
    return IntImm("bool", value)


@lru_cache(maxsize=256)
def _float32(value: float) -> Any:
    return FloatImm("float32", value)


def check_int64(value: Any) -> Any:
    """Return a number; one of more than 64 bits is refused, because TVM would take it as such.

    Raises
    ------
    ValueError
        For an integer beyond int64.
    """
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"the number {value} has more than 64 bits")
    return value


def _plain(value: Any) -> Any:
    return value


def _expression(value: int | float) -> Any:
    """Return a number as TVM's conversion to an expression makes it."""
    if type(value) is float:
        return _float32(value)
    if -(2**31) <= value < 2**31:
        return _int32(value)
    return IntImm("int64", check_int64(value))


def _default(value: Any) -> Any:
    """Return an attribute whose type follows from its JSON."""
    if type(value) is bool:
        return _bool(value)
    return _expression(value) if type(value) in (int, float) else value


def _flag(value: Any) -> bool:
    return bool(value)


def _probabilities(value: Any) -> Any:
    # An integral one stands in the file as an integer.
    return [_float32(float(item)) for item in value]


def _attr_index_map(value: Any) -> Any:
    # TVM substitutes no variables in attributes.
    return None if value is None else _index_map(value, {})


#: Attributes whose type in memory their JSON does not tell.
_ATTRS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "PadEinsum": (_plain,),
    "SampleCategorical": (_plain, _probabilities),
    "Split": (_flag, _flag),
    "TransformBlockLayout": (_attr_index_map,),
    "TransformLayout": (_default, _default, _attr_index_map, _default),
}

#: Kinds whose numbers among the inputs are expressions; those of the others are plain numbers.
_EXPRESSION_LITERALS = frozenset(
    {"AnnotateBufferAccess", "LoopPartition", "Split", "UnsafeHideBufferAccess"}
)


def _attrs(name: str, attrs: list[Any]) -> Any:
    """Return the attributes of an instruction as an array of TVM; arrays are immutable."""
    return _attrs_of_json(name, orjson.dumps(attrs))


@lru_cache(maxsize=4096)
def _attrs_of_json(name: str, text: bytes) -> Any:
    attrs = orjson.loads(text)
    convert = _ATTRS.get(name)
    if convert is None:
        return tvm_ffi.convert([_default(value) for value in attrs])
    return tvm_ffi.convert([f(value) for f, value in zip(convert, attrs, strict=True)])
