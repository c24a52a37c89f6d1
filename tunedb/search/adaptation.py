"""Adaptation of the programs of one workload to another one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from ..programs.metaschedule.trace import is_variable
from .draft import Draft, Instruction
from .tilings import nearest_tiling

#: Weight of a pair of instructions in an alignment, which is made for those with decisions.
_PAIR, _SAMPLING_PAIR = 1, 4

_TILE, _PARTITIONED = "SamplePerfectTile", "SamplePartitionedTile"
_CATEGORY, _LOCATION = "SampleCategorical", "SampleComputeLocation"
_SAMPLING = frozenset({_TILE, _PARTITIONED, _CATEGORY, _LOCATION})
_BLOCKS = frozenset({"GetBlock", "GetSBlock"})


@dataclass(frozen=True, slots=True)
class Adapted:
    """A program of another workload, on the instructions of a template.

    Parameters
    ----------
    draft : Draft
        The template's instructions with the donor's decisions. Decisions without a counterpart in
        the donor are left out, and TVM draws them.
    kept : float
        Share of the decisions that were taken over, in (0, 1]: their number / the number of the
        donor's decisions or of the template's sampling instructions, whichever is greater.
    """

    draft: Draft
    kept: float


def adapt(donor: Draft, template: Draft) -> Adapted | None:
    """Put the decisions of a program on the instructions of a template of another workload.

    Instructions are aligned in their order such that most are equal but for the names of blocks;
    those with decisions must also work on the same loops and blocks. Then

    * a tile is repaired (:func:`tunedb.search.tilings.nearest_tiling`), and stays as it is if the
      extent is the same;
    * a category keeps its value, even if its index differs in the template;
    * a location stays unchanged.

    Parameters
    ----------
    donor : Draft
        A program of any workload.
    template : Draft
        A program of the new workload, such as a design space of TVM's. Its own tiles give the
        extents of loops: a tile that it leaves undecided stays so.

    Returns
    -------
    Adapted or None
        None where no decision has a counterpart. Damaged donors raise nothing.
    """
    decisions: dict[int, Any] = {}
    for left, right in _correspondence(donor.skeleton, template.skeleton).decided:
        if left in donor.decisions:
            decision = _translated(
                (donor.instructions[left], donor.decisions[left]),
                (template.instructions[right], template.decisions.get(right)),
            )
            if decision is not None:
                decisions[right] = decision
    if not decisions:
        return None
    draft = template
    for number in template.decisions.keys() - decisions.keys():
        draft = draft.without_decision(number)
    for number, decision in decisions.items():
        draft = draft.with_decision(number, decision)
    n_sampling = sum(instruction.is_sampling for instruction in template.instructions)
    return Adapted(draft, len(decisions) / max(n_sampling, len(donor.decisions)))


def nearest_template(donor: Draft, templates: Sequence[Draft]) -> Draft | None:
    """Return the template whose instructions are most like a program's; the first of equals.

    Parameters
    ----------
    donor : Draft
        A program of any workload.
    templates : sequence of Draft
        Programs of the new workload.

    Returns
    -------
    Draft or None
        None where there are no templates.
    """
    agreements = [_correspondence(donor.skeleton, each.skeleton).agreement for each in templates]
    return templates[agreements.index(max(agreements))] if templates else None


class _Correspondence(NamedTuple):
    """Matching instructions of two sketches."""

    #: Pairs of sampling instructions.
    decided: tuple[tuple[int, int], ...]
    #: Share of all instructions that have a partner with corresponding inputs.
    agreement: float


@lru_cache(maxsize=4096)
def _correspondence(donor: bytes, template: bytes) -> _Correspondence:
    left, right = orjson.loads(donor), orjson.loads(template)
    left_tokens, right_tokens = _tokens(left), _tokens(right)
    variables: dict[str, str] = {}
    decided, agreeing = [], 0
    for i, j in _alignment(left_tokens, right_tokens):
        kind, inputs, _, outputs = left[i]
        # An input that no aligned instruction defines has no counterpart.
        agrees = _renamed(inputs, variables) == right[j][1]
        variables.update(zip(outputs, right[j][3], strict=True))
        agreeing += agrees
        if agrees and kind in _SAMPLING:
            decided.append((i, j))
    total = len(left) + len(right)
    return _Correspondence(tuple(decided), 2 * agreeing / total if total else 1.0)


def _renamed(value: Any, variables: dict[str, str]) -> Any:
    """Return inputs with the other sketch's names for variables, None for those without."""
    if isinstance(value, list):
        return [_renamed(item, variables) for item in value]
    return variables.get(value) if is_variable(value) else value


def _tokens(instructions: list[Any]) -> list[tuple[str, int]]:
    """Return for each instruction the text that a partner shares, and the weight of the pair."""
    uses: dict[str, str] = {}
    for kind, inputs, attrs, _ in instructions:
        for name in inputs:
            if isinstance(name, str):
                uses.setdefault(name, f"{kind}{attrs}")
    tokens = []
    for kind, inputs, attrs, outputs in instructions:
        distinction: Any = attrs
        weight = _PAIR
        if kind in _SAMPLING:
            # Distinguished by the use of the number, not by limits and candidates.
            distinction = [attrs[:1] if kind == _TILE else [], [uses.get(name) for name in outputs]]
            weight = _SAMPLING_PAIR
        elif kind in _BLOCKS:
            distinction = []
        tokens.append((repr((kind, len(inputs), distinction, len(outputs))), weight))
    return tokens


def _alignment(left: list[tuple[str, int]], right: list[tuple[str, int]]) -> list[tuple[int, int]]:
    """Return the pairs of a heaviest common subsequence, ascending."""
    if left == right:
        return [(i, i) for i in range(len(left))]
    # best[i][j]: the greatest weight of the instructions from i and from j on.
    best = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        row, below, (token, weight) = best[i], best[i + 1], left[i]
        for j in range(len(right) - 1, -1, -1):
            paired = below[j + 1] + weight if right[j][0] == token else 0
            row[j] = max(paired, below[j], row[j + 1])
    pairs, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i][0] == right[j][0] and best[i][j] == best[i + 1][j + 1] + left[i][1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _translated(donor: tuple[Instruction, Any], template: tuple[Instruction, Any]) -> Any:
    """Return a donor's decision as one of the template's; None without a counterpart."""
    (old, decision), (new, own) = donor, template
    if new.kind == _TILE:
        return _tile(decision, own, new.attrs)
    if new.kind == _CATEGORY:
        return _category(old.attrs, decision, new.attrs)
    if new.kind == _LOCATION:
        return decision if type(decision) is int else None
    # TVM vectorises a part that the inner levels divide: only the same tile is sure to fit.
    is_same = old.attrs == new.attrs and _extent(decision) == _extent(own)
    return decision if is_same and own is not None else None


def _tile(decision: Any, own: Any, attrs: tuple[Any, ...]) -> list[int] | None:
    extent = _extent(own)
    if extent is None or _extent(decision) is None or len(decision) != len(own):
        return None
    limit = attrs[1] if len(attrs) > 1 and type(attrs[1]) is int else None
    tiling = nearest_tiling(tuple(decision), extent, limit)
    return None if tiling is None else list(tiling)


def _extent(factors: Any) -> int | None:
    """Return the extent of a tiled loop, None where `factors` is not a list of factors."""
    if not isinstance(factors, list) or not all(type(f) is int and f > 0 for f in factors):
        return None
    return math.prod(factors) if factors else None


def _category(donor_attrs: tuple[Any, ...], decision: Any, attrs: tuple[Any, ...]) -> int | None:
    """Return the number of the candidate with the value that the donor has chosen."""
    values, candidates = donor_attrs[0] if donor_attrs else (), attrs[0] if attrs else ()
    if type(decision) is not int or not isinstance(values, tuple):
        return None
    if not isinstance(candidates, tuple) or not 0 <= decision < len(values):
        return None
    return candidates.index(values[decision]) if values[decision] in candidates else None
