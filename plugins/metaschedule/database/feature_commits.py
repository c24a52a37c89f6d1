"""Feature rows of measured candidates, computed and stored beside their records."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....errors import UsageError
from ....extraction.extract import rows_of_steps, split_outcomes
from ....features.base import FeatureSet, NestFeatures, StepFeatures, feature_set
from ....records import Program, Source
from ....storage.store import Store

if TYPE_CHECKING:
    from ..features.candidate_features import CandidateRows

_log = logging.getLogger("tunedb")

#: Feature sets that are committed by default.
DEFAULT = ("tunedb.scheduled",)


class FeatureCommits:
    """Features beside records; an error is logged and never reaches the tuning run.

    Parameters
    ----------
    store : Store
        Store that they are written to.
    names : sequence of str
        Names of the feature sets; empty for no features.
    source : Source
        Source of quarantined programs.

    Raises
    ------
    NotFoundError, PluginError
        A feature set does not exist or does not load. A set of :data:`DEFAULT` that does not load
        is logged and left out.
    UsageError
        `names` is a string.
    """

    def __init__(self, store: Store, names: Sequence[str], source: Source) -> None:
        if isinstance(names, str):
            raise UsageError(f"features must be a sequence of names; write ({names!r},)")
        self._store = store
        self._source = source
        self._names = tuple(names)
        self._sets: list[FeatureSet] | None = None
        self._warned: set[str] = set()
        #: Feature set → the rows that a cost model remembers, while it lives.
        self.remembered: dict[str, weakref.ref[CandidateRows]] = {}
        if self._names != DEFAULT:
            self._sets = [feature_set(name) for name in self._names]

    @property
    def wanted(self) -> bool:
        """True if there is a feature set."""
        return bool(self._names)

    def commit(
        self, programs: Sequence[Program | None], candidates: Sequence[Any], target: Any
    ) -> None:
        """Store the rows of programs; a failure is quarantined and logged once.

        Parameters
        ----------
        programs : sequence of Program or None
            Stored programs; None for a candidate that is not stored.
        candidates : sequence of tvm MeasureCandidate
            Measured candidate of each program.
        target : tvm Target
            Target of the candidates.
        """
        try:
            # The same program may be in a batch twice.
            by_digest = {p.digest: c for p, c in zip(programs, candidates, strict=True) if p}
            ids = self._store.programs.ids(by_digest)
            by_id = {id_: c for id_, c in zip(ids, by_digest.values(), strict=True) if id_}
        except Exception as error:
            self._warn("features", error)
            return
        for features in self._loaded() if by_id else ():
            try:
                self._commit(features, by_id, target)
            except Exception as error:
                self._warn(features.name, error)

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

    def _commit(self, features: FeatureSet, candidates: dict[int, Any], target: Any) -> None:
        stored = self._store.programs.get(list(candidates))
        if isinstance(features, StepFeatures):
            outcomes = rows_of_steps(features, stored)
        elif isinstance(features, NestFeatures):
            rows = self._rows(features, [candidates[program.id] for program in stored], target)
            outcomes = list(zip(stored, rows, strict=True))
        else:
            raise TypeError("it is neither StepFeatures nor NestFeatures")
        good, bad = split_outcomes(features, outcomes)
        self._store.features.add(features, good)
        if bad:
            self._store.quarantine.add(bad, self._source)
            self._warn(features.name, bad[0].reason)

    def _rows(self, features: NestFeatures, candidates: Sequence[Any], target: Any) -> list[Any]:
        """Return the rows of candidates, computed if no cost model remembers them."""
        from ..features.rows import rows_of

        remembered = self.remembered.get(features.name, lambda: None)()
        recalled = [None if remembered is None else remembered.recall(c) for c in candidates]
        known = [None if scored is None else scored.rows for scored in recalled]
        missing = [c.sch.mod for c, rows in zip(candidates, known, strict=True) if rows is None]
        computed = iter(rows_of(missing, target, features) if missing else [])
        return [next(computed) if rows is None else rows for rows in known]

    def _warn(self, name: str, error: Exception | str) -> None:
        """Log that features of a set are missing, as a warning the first time."""
        level = logging.DEBUG if name in self._warned else logging.WARNING
        self._warned.add(name)
        reason = " ".join(str(error).split())[:300]
        _log.log(level, "%s: features left out: %s: %s", self._store.location, name, reason)
