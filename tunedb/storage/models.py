"""Models, and the scores that they gave to programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from .. import identity
from ..errors import FormatError, IntegrityError, NotFoundError
from ..json_checks import parse_json
from ..results import NewModel, StoredModel
from . import schema, statements
from .database import Database
from .rows import now

_k = schema.model.c


class Models:
    """``store.models``: adds and reads models."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def __repr__(self) -> str:
        return f"<models of {self._db.location}>"

    def add(self, model: NewModel, *, replace: bool = False) -> int:
        """Add a model.

        Parameters
        ----------
        model : NewModel
            The model.
        replace : bool
            Replace card and body of a model with the same digest, which keeps its id and
            predictions. Otherwise an existing model is not changed.

        Returns
        -------
        int
            Id of the model.
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
        with self._db.transaction() as connection:
            statements.insert["model"](connection, **row)
            if replace:
                statements.replace_model(
                    connection, known=model.digest, new_card=row["card"], new_body=row["body"]
                )
            return int(statements.id_of["model"](connection, digest=model.digest).scalar_one())

    def add_predictions(self, model_id: int, scores: Mapping[int, float]) -> int:
        """Add the scores of programs that are not yet measured; existing scores are kept.

        Programs removed meanwhile (:mod:`tunedb.storage.pruning`) are ignored.

        Parameters
        ----------
        model_id : int
            Id of the model.
        scores : mapping
            Program id → score; higher is faster.

        Returns
        -------
        int
            Number of new predictions.
        """
        moment = now()
        rows = [
            {"model_id": model_id, "program_id": id_, "score": float(score), "predicted_at": moment}
            for id_, score in scores.items()
        ]
        with self._db.transaction() as connection:
            return statements.insert["prediction"].many(connection, rows)

    def all(self, *, kind: str | None = None) -> list[StoredModel]:
        """Return all models in order of insertion.

        Parameters
        ----------
        kind : str or None
            Only models of this kind: ``ranker`` or ``failures``.

        Returns
        -------
        list of StoredModel

        Raises
        ------
        IntegrityError
            A card is not JSON.
        """
        statement = _models().order_by(_k.id)
        if kind is not None:
            statement = statement.where(_k.kind == kind)
        return [self._model(row) for row in self._db.select(statement)]

    def find(self, digest: bytes) -> StoredModel | None:
        """Return the model with a digest, or None.

        Parameters
        ----------
        digest : bytes
            Digest of the model.

        Returns
        -------
        StoredModel or None
        """
        rows = self._db.select(_models().where(_k.digest == digest))
        return self._model(rows[0]) if rows else None

    def _model(self, row: Any) -> StoredModel:
        try:
            card = parse_json(row.card.encode())
        except FormatError as error:
            raise IntegrityError(
                f"{self._db.location}: the card of model {row.id} is damaged ({error}); "
                "see: tunedb db check"
            ) from None
        return StoredModel(
            id=row.id,
            digest=bytes(row.digest),
            kind=row.kind,
            parameters=row.parameters.encode(),
            training_digest=bytes(row.training_digest),
            card=card,
            created_at=row.created_at,
            size=row.size,
        )

    def body(self, id_: int) -> bytes | None:
        """Return the boosters of a model.

        Parameters
        ----------
        id_ : int
            Id of the model.

        Returns
        -------
        bytes or None
            None if only the card is stored.

        Raises
        ------
        NotFoundError
            The database has no such model.
        """
        rows = self._db.select(select(_k.body).where(_k.id == id_))
        if not rows:
            raise NotFoundError(f"{self._db.location}: no model {id_}; see: tunedb models")
        return None if rows[0].body is None else bytes(rows[0].body)


def _models() -> Any:
    """Return the query of models without their bodies."""
    columns: list[Any] = [column for column in schema.model.c if column.name != "body"]
    return select(*columns).add_columns(func.length(_k.body).label("size"))
