"""Rows of features of the candidates that a tuning run has just measured."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....errors import UsageError
from ....extraction.extract import rows_of_steps, sort_out
from ....features.base import FeatureSet, NestFeatures, StepFeatures, feature_set
from ....records import Program, Source
from ....storage.store import Store

if TYPE_CHECKING:
    from ..features.candidate_features import CandidateRows

_log = logging.getLogger("tunedb")

#: What is committed unless the user says otherwise.
DEFAULT = ("tunedb.scheduled",)


class FeatureCommits:
    """Computes and stores features beside records; no failure of it reaches the tuning run.

    Parameters
    ----------
    store : Store
        Where to.
    names : sequence of str
        The feature sets; none for no features.
    source : Source
        Under which to quarantine.

    Raises
    ------
    NotFoundError, PluginError
        A feature set does not exist or does not load. One of :data:`DEFAULT` that does not load
        is logged and left out.
    UsageError
        `names` is a text.
    """

    def __init__(self, store: Store, names: Sequence[str], source: Source) -> None:
        if isinstance(names, str):
            raise UsageError(f"features must be a sequence of names; write ({names!r},)")
        self._store = store
        self._source = source
        self._names = tuple(names)
        self._sets: list[FeatureSet] | None = None
        self._warned: set[str] = set()
        #: Feature set → what remembers rows of candidates (a cost model's), while it lives.
        self.remembered: dict[str, weakref.ref[CandidateRows]] = {}
        if self._names != DEFAULT:
            self._sets = [feature_set(name) for name in self._names]

    @property
    def wanted(self) -> bool:
        """Whether any feature set is."""
        return bool(self._names)

    def commit(
        self, programs: Sequence[Program | None], candidates: Sequence[Any], target: Any
    ) -> None:
        """Store the rows of programs; what fails is quarantined and logged once.

        Parameters
        ----------
        programs : sequence of Program or None
            Programs that are stored; None for a candidate that is not.
        candidates : sequence of tvm MeasureCandidate
            What was measured of each.
        target : tvm Target
            Their target.
        """
        try:
            # The same program may be in a batch twice.
            pairs = {p.digest: one for p, one in zip(programs, candidates, strict=True) if p}
            ids = self._store.programs.ids(pairs)
            known = {id_: one for id_, one in zip(ids, pairs.values(), strict=True) if id_}
        except Exception as error:
            self._warn("features", error)
            return
        for one in self._loaded() if known else ():
            try:
                self._commit(one, known, target)
            except Exception as error:
                self._warn(one.name, error)

    def _loaded(self) -> list[FeatureSet]:
        """Return the feature sets; numpy and the kernels are loaded with the first batch."""
        if self._sets is None:
            self._sets = []
            for name in self._names:
                try:
                    self._sets.append(feature_set(name))
                except Exception as error:
                    self._warn(name, error)
        return self._sets

    def _commit(self, one: FeatureSet, known: dict[int, Any], target: Any) -> None:
        stored = self._store.programs.get(list(known))
        if isinstance(one, StepFeatures):
            outcomes = rows_of_steps(one, stored)
        elif isinstance(one, NestFeatures):
            rows = self._rows(one, [known[program.id] for program in stored], target)
            outcomes = list(zip(stored, rows, strict=True))
        else:
            raise TypeError("it is neither StepFeatures nor NestFeatures")
        good, bad = sort_out(one, outcomes)
        self._store.features.add(one, good)
        if bad:
            self._store.quarantine.add(bad, self._source)
            self._warn(one.name, bad[0].reason)

    def _rows(self, one: NestFeatures, candidates: Sequence[Any], target: Any) -> list[Any]:
        """Return the rows of candidates; those that a cost model has asked for are remembered."""
        from ..features.rows import rows_of

        remembered = self.remembered.get(one.name, lambda: None)()
        met = [None if remembered is None else remembered.recall(c) for c in candidates]
        found = [None if known is None else known.rows for known in met]
        missing = [c.sch.mod for c, rows in zip(candidates, found, strict=True) if rows is None]
        computed = iter(rows_of(missing, target, one) if missing else [])
        return [next(computed) if rows is None else rows for rows in found]

    def _warn(self, name: str, error: Exception | str) -> None:
        """Say once that features of a set cannot be had."""
        level = logging.DEBUG if name in self._warned else logging.WARNING
        self._warned.add(name)
        words = " ".join(str(error).split())[:300]
        _log.log(level, "%s: features left out: %s: %s", self._store.location, name, words)
