"""Which workloads, targets and sources of somebody's database a selection's words mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from .. import limits
from ..errors import NotFoundError
from ..records import LOOSE, Target
from .foreign import told

#: Shortest beginning of a digest, in hexadecimal digits, that is taken for one.
_SHORTEST = 4

#: Names that a message lists.
_MOST_NAMED = 8


class Words:
    """Words of one kind, and the rows that they mean.

    A row's name, or another label of it, comes before a part of its name and the beginning of its
    digest: ``matmul`` means the workload of that name and not ``batch_matmul``.

    Parameters
    ----------
    kind : str
        ``workload``, ``target`` or ``source``; for messages.
    words : iterable of str
        At least one.
    parts : bool
        Parts of names count.
    """

    def __init__(self, kind: str, words: Iterable[str], *, parts: bool) -> None:
        self._kind = kind
        self._parts = parts
        self._exact: dict[str, set[int]] = {word: set() for word in words}
        self._loose: dict[str, set[int]] = {word: set() for word in self._exact}
        self._names: list[str] = []

    def add(self, number: int, names: Iterable[Any], digest: Any) -> None:
        """Look at one row; what is no text or no bytes means nothing."""
        labels = [name for name in names if isinstance(name, str)]
        if labels and len(self._names) <= _MOST_NAMED and labels[0] not in self._names:
            self._names.append(labels[0])
        written = digest.hex() if isinstance(digest, bytes) else ""
        for word in self._exact:
            if word in labels:
                self._exact[word].add(number)
            elif (self._parts and any(word in label for label in labels)) or (
                len(word) >= _SHORTEST and written.startswith(word.lower())
            ):
                self._loose[word].add(number)

    def found(self) -> set[int]:
        """Return the numbers of the rows that are meant.

        Raises
        ------
        NotFoundError
            A word means none; the message says what there is.
        """
        meant: set[int] = set()
        for word, exact in self._exact.items():
            numbers = exact or self._loose[word]
            if not numbers:
                raise NotFoundError(f"no {self._kind} {word!r} there; {self._listed()}")
            meant |= numbers
        return meant

    def _listed(self) -> str:
        names = [told(name) for name in self._names[:_MOST_NAMED]]
        if not names:
            return "there is none"
        more = " and more" if len(self._names) > _MOST_NAMED else ""
        return f"there are: {', '.join(names)}{more}"


def labels_of(kind: Any, config: Any) -> list[str]:
    """Return the words for a target: its kind, its label, and its label with its cores.

    Those that can be told: `config` may be anything.
    """
    if not isinstance(kind, str):
        return []
    if not isinstance(config, str) or len(config) > limits.MAX_TARGET_CHARS:
        return [kind]
    try:
        target = Target(kind, config.encode())
        attributes = target.attributes
        if not isinstance(attributes, dict):
            return [kind]
        cores = attributes.get("num-cores")
        label = target.label
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return [kind]
    return [label, kind, f"{label} {cores} cores"] if isinstance(cores, int) else [label, kind]


def is_strict(scheme: Any) -> bool:
    """Tell whether workloads with a common alias of this scheme are the same computation."""
    return isinstance(scheme, str) and not scheme.endswith(LOOSE)
