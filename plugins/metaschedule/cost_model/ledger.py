"""What models said of programs before they were measured, on its way into the database."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachetools import FIFOCache

if TYPE_CHECKING:
    from ....models.model import Model
    from ....results import NewModel
    from ....storage.store import Store

_log = logging.getLogger("tunedb")

#: Predictions that wait for their programs: those of programs that nobody stores are forgotten.
_MOST_WAITING = 2_000


@dataclass(slots=True, eq=False)
class Scorer:
    """A model in use, and its row.

    Parameters
    ----------
    model : Model
        What scores.
    row : NewModel
        Its row without boosters, which is added when the first prediction is written.
    learnt : int
        How many programs it has learnt from.
    least : float or None
        Pairwise accuracy below which it has drifted: its card's 5th percentile over workloads.
    id : int or None
        Local number of its row; None while there is none.
    """

    model: Model
    row: NewModel
    learnt: int
    least: float | None = None
    id: int | None = None


class Ledger:
    """Predictions on their way into the database.

    Nothing that fails here reaches the tuning run.

    Parameters
    ----------
    store : Store
        Where to.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: FIFOCache[bytes, tuple[Scorer, float]] = FIFOCache(_MOST_WAITING)
        self._warned = False

    def __len__(self) -> int:
        """Return how many predictions wait for their programs."""
        return len(self._waiting)

    def note(self, scorer: Scorer, program: bytes, score: float) -> None:
        """Keep what a model said of a program, before it was measured.

        Parameters
        ----------
        scorer : Scorer
            Which model.
        program : bytes
            Digest of the program.
        score : float
            The model's own score.
        """
        self._waiting.setdefault(program, (scorer, score))

    def write(self) -> None:
        """Write the predictions of programs that are stored; the others go on waiting.

        TVM's callbacks may store the candidates of a batch before the cost model learns of them,
        or after.
        """
        if not self._waiting or self._store.read_only:
            return
        try:
            ids = self._store.programs.ids(self._waiting)
            known = [(d, id_) for d, id_ in zip(self._waiting, ids, strict=True) if id_]
            told: dict[Scorer, dict[int, float]] = {}
            for digest, id_ in known:
                scorer, score = self._waiting[digest]
                told.setdefault(scorer, {})[id_] = score
            for scorer, scores in told.items():
                if scorer.id is None:
                    scorer.id = self._store.models.add(scorer.row)
                self._store.models.add_predictions(scorer.id, scores)
            for digest, _ in known:
                del self._waiting[digest]
        except Exception as error:
            # A model may have been pruned meanwhile; the next time it is added again.
            for scorer, _ in self._waiting.values():
                scorer.id = None
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        where = self._store.location
        words = " ".join(str(error).removeprefix(f"{where}: ").split())[:300]
        _log.log(level, "%s: predictions left out: %s", where, words)
