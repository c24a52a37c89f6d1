"""Writing what is derived from records and may be dropped: features, models, their predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from .. import identity, limits
from ..results import NewModel, SessionFactor
from . import schema, statements
from .rows import Rows, now

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..features.base import NamedSet


class Derived(ABC):
    """The part of :class:`~.store.Store` that writes what is derived; its guarantees hold."""

    _rows: Rows

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """Yield the writer's connection inside one write transaction."""

    def add_features(
        self, feature_set: NamedSet, programs: Iterable[tuple[int, NDArray[Any]]]
    ) -> int:
        """Add rows of a feature set in one transaction; programs that have theirs keep them.

        Rows that came with a merge are replaced: what is computed here counts. A program that was
        removed meanwhile (:mod:`tunedb.storage.deletion`) is left out.

        Parameters
        ----------
        feature_set : FeatureSet
            Whose rows they are.
        programs : iterable of (int, array of shape (rows, columns))
            A program's local number, and its rows; kept as float32.

        Returns
        -------
        int
            How many programs had none before that were computed here.

        Raises
        ------
        FormatError, LimitError
            Rows that cannot be kept (:func:`tunedb.features.blobs.checked`); nothing is added.
        UsageError
            This version of the feature set is stored with other columns.
        """
        from ..features import blobs

        # Before the transaction: nobody waits for the packing.
        rows = blobs.pack(feature_set, programs)
        if not rows:
            return 0
        with self._transaction() as connection:
            key = {"feature_set_id": self._rows.feature_set(connection, feature_set)}
            rows = [row | key for row in rows]
            new = statements.insert["feature"].many(connection, rows)
            if new < len(rows) and (marked := _marked(connection, rows)):
                statements.forget_features.many(connection, marked)
                statements.unmark_features.many(connection, marked)
                new += statements.insert["feature"].many(connection, rows)
            return new

    def add_model(self, model: NewModel, *, replace: bool = False) -> int:
        """Add a model; return its id.

        Parameters
        ----------
        model : NewModel
            Its row.
        replace : bool
            Whether one that is known by its digest gets this card and body; it keeps its id and
            predictions. Otherwise it stays as it was.
        """
        row = {
            "digest": model.digest,
            "kind": model.kind,
            "parameters": model.parameters.decode(),
            "training_digest": model.training_digest,
            "card": identity.canonical_json(model.card).decode(),
            "created_at": now(),
            "body": model.body,
        }
        with self._transaction() as connection:
            statements.insert["model"](connection, **row)
            if replace:
                statements.remake_model(
                    connection, known=model.digest, new_card=row["card"], new_body=row["body"]
                )
            return int(statements.id_of["model"](connection, digest=model.digest).scalar_one())

    def add_predictions(self, model_id: int, scores: Mapping[int, float]) -> int:
        """Add what a model said of programs before they were measured; what is known stays.

        A program that was removed meanwhile (:mod:`tunedb.storage.deletion`) is left out.

        Parameters
        ----------
        model_id : int
            Local number of the model.
        scores : mapping
            Local number of a program → its score.

        Returns
        -------
        int
            How many were new.
        """
        moment = now()
        rows = [
            {"model_id": model_id, "program_id": id_, "score": float(score), "predicted_at": moment}
            for id_, score in scores.items()
        ]
        with self._transaction() as connection:
            return statements.insert["prediction"].many(connection, rows)

    def set_session_factors(self, target_id: int, factors: Sequence[SessionFactor]) -> None:
        """Replace the factors of a target's sessions."""
        moment = now()
        rows = [
            {
                "target_id": target_id,
                "subject": factor.subject,
                "subject_id": factor.subject_id,
                "machine": factor.machine,
                "factor": factor.factor,
                "spread": factor.spread,
                "programs": factor.programs,
                "estimated_at": moment,
            }
            for factor in factors
        ]
        with self._transaction() as connection:
            statements.forget_factors(connection, target=target_id)
            statements.insert["session_factor"].many(connection, rows)


def _marked(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Return the keys of those rows of a feature set that programs have from elsewhere."""
    mark = schema.foreign_feature.c
    found = select(mark.program_id, mark.feature_set_id)
    marked: list[dict[str, int]] = []
    for start in range(0, len(rows), limits.BATCH_ROWS):
        part = rows[start : start + limits.BATCH_ROWS]
        ids = [row["program_id"] for row in part]
        of_set = mark.feature_set_id == part[0]["feature_set_id"]
        marked += [
            dict(row._mapping)
            for row in connection.execute(found.where(of_set, mark.program_id.in_(ids)))
        ]
    return marked
