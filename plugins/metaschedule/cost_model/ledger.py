"""Ledger: predictions for programs that are not measured yet, on their way into the database."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachetools import FIFOCache

from ....errors import UsageError

if TYPE_CHECKING:
    from ....models.model import Model
    from ....results import NewModel
    from ....storage.store import Store

_log = logging.getLogger("tunedb")

#: Most predictions that wait for their programs; a program that is never stored is forgotten.
_MOST_WAITING = 2_000


@dataclass(slots=True, eq=False)
class Scorer:
    """A model in use, with its row.

    Parameters
    ----------
    model : Model
        Model that scores.
    row : NewModel
        Row of the model without boosters, which is added with the first stored prediction.
    trained_on : int
        Number of programs in its training set.
    least : float or None
        Pairwise accuracy below which it has drifted: its card's 5th percentile over workloads.
    id : int or None
        Local number of the row; None while it is not stored.
    """

    model: Model
    row: NewModel
    trained_on: int
    least: float | None = None
    id: int | None = None


class Ledger:
    """Predictions on their way into the database.

    An error is logged and never reaches the tuning run.

    Parameters
    ----------
    store : Store
        Store that they are written to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: FIFOCache[bytes, tuple[Scorer, float]] = FIFOCache(_MOST_WAITING)
        self._warned = False

    def __len__(self) -> int:
        """Return the number of predictions that wait for their programs."""
        return len(self._waiting)

    def add(self, scorer: Scorer, program: bytes, score: float) -> None:
        """Add the prediction for a program that is not measured yet.

        Parameters
        ----------
        scorer : Scorer
            Model that predicted.
        program : bytes
            Digest of the program.
        score : float
            The model's own score.
        """
        self._waiting.setdefault(program, (scorer, score))

    def write(self) -> None:
        """Write the predictions of stored programs; the others go on waiting.

        TVM's callbacks may store the candidates of a batch before or after the cost model's update.
        """
        if not self._waiting or self._store.read_only:
            return
        try:
            ids = self._store.programs.ids(self._waiting)
            known = [(d, id_) for d, id_ in zip(self._waiting, ids, strict=True) if id_]
            by_scorer: dict[Scorer, dict[int, float]] = {}
            for digest, id_ in known:
                scorer, score = self._waiting[digest]
                by_scorer.setdefault(scorer, {})[id_] = score
            for scorer, scores in by_scorer.items():
                if scorer.id is None:
                    scorer.id = self._store.models.add(scorer.row)
                self._store.models.add_predictions(scorer.id, scores)
            for digest, _ in known:
                del self._waiting[digest]
        except UsageError:  # the store is closed; closing its database wrote the predictions
            self._waiting.clear()
        except Exception as error:
            # A model may have been pruned meanwhile; the next write adds it again.
            for scorer, _ in self._waiting.values():
                scorer.id = None
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        where = self._store.location
        words = " ".join(str(error).removeprefix(f"{where}: ").split())[:300]
        _log.log(level, "%s: predictions are not stored yet: %s", where, words)
