"""Models, what they predicted, and the factors of sessions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from ...errors import FormatError, IntegrityError, NotFoundError
from ...json_checks import parse_json
from ...results import SessionFactor, StoredModel
from .. import schema
from .sessions import Sessions

_k, _f = schema.model.c, schema.session_factor.c


class Models(Sessions):
    """Reads of what is derived from records."""

    def models(self, *, kind: str | None = None) -> list[StoredModel]:
        """Return all models, or those of a kind, in the order of their making.

        Raises
        ------
        IntegrityError
            A card is not JSON.
        """
        statement = _models().order_by(_k.id)
        if kind is not None:
            statement = statement.where(_k.kind == kind)
        return [self._model(row) for row in self._select(statement)]

    def model_by_digest(self, digest: bytes) -> StoredModel | None:
        """Return the model with a digest, or None."""
        rows = self._select(_models().where(_k.digest == digest))
        return self._model(rows[0]) if rows else None

    def _model(self, row: Any) -> StoredModel:
        try:
            card = parse_json(row.card.encode())
        except FormatError as error:
            raise IntegrityError(
                f"{self._location}: the card of model {row.id} is damaged ({error}); "
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

    def model_body(self, id_: int) -> bytes | None:
        """Return the boosters of a model; None where only its card is kept.

        Raises
        ------
        NotFoundError
            There is no such model.
        """
        rows = self._select(select(_k.body).where(_k.id == id_))
        if not rows:
            raise NotFoundError(f"{self._location}: no model {id_}; see: tunedb models")
        return None if rows[0].body is None else bytes(rows[0].body)

    def session_factors(self, target_id: int) -> list[SessionFactor]:
        """Return the factors of a target's sessions, as they were estimated last."""
        rows = self._select(
            select(schema.session_factor)
            .where(_f.target_id == target_id)
            .order_by(_f.subject, _f.subject_id)
        )
        return [
            SessionFactor(
                row.subject, row.subject_id, row.machine, row.factor, row.spread, row.programs
            )
            for row in rows
        ]


def _models() -> Any:
    """Return the query of models without their bodies."""
    columns: list[Any] = [column for column in schema.model.c if column.name != "body"]
    return select(*columns).add_columns(func.length(_k.body).label("size"))
