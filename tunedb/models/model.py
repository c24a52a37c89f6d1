"""A trained model: scores of programs, and its bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from .. import identity, limits
from ..errors import FormatError, LimitError, UsageError
from ..json_checks import parse_json
from ._xgboost import import_xgboost, threads_to_use
from .aggregation import segmented, stacked
from .base import Floats, part
from .recipe import MOST_MEMBERS, Recipe

if TYPE_CHECKING:
    from ..features.base import NamedSet
    from .base import RowModel
    from .dataset import Dataset

#: First bytes of every model, with the version of the layout as the last of them:
#: digest of what follows (16 bytes), length of the header (4, little-endian), header as JSON,
#: boosters as UBJSON.
_MAGIC = b"tunedb-model\x01"
_LENGTH = struct.Struct("<I")
_HEADER_KEYS = {"recipe", "rows", "feature_set", "version", "columns", "boosters", "xgboost"}


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Boosters, and what their rows are made of.

    A booster scores each row that the row model makes of a program; the score of the program is
    the sum over them, and that of the model the mean over its boosters. A program without rows
    scores 0, the sum of nothing: what a failed program should score where the label is a
    throughput. ``rank`` and ``relative`` have no zero, and about their mean there.

    Parameters
    ----------
    recipe : Recipe
        How it was made.
    feature_set, version : str, int
        What computes its rows.
    columns : tuple of str
        Names of the feature set's columns.
    boosters : tuple of xgboost.Booster
        The members.
    rows : str
        The row model: the recipe's, or ``pack-sum`` where that comes to the same
        (:func:`tunedb.models.aggregation.row_model`).
    """

    recipe: Recipe
    feature_set: str
    version: int
    columns: tuple[str, ...]
    boosters: tuple[Any, ...]
    rows: str = "pack-sum"

    @property
    def row_model(self) -> RowModel:
        """What makes the rows that trees see."""
        found: RowModel = part("row model", self.rows)[0]
        return found

    @property
    def tree_columns(self) -> tuple[str, ...]:
        """Names of the columns that trees see; ``f12`` of a booster is the twelfth, from 0."""
        return self.row_model.columns(self.columns)

    @property
    def rounds(self) -> int:
        """Rounds of boosting, of all members together."""
        return sum(booster.num_boosted_rounds() for booster in self.boosters)

    def use_threads(self, threads: int | None) -> None:
        """Score on so many threads; see :func:`tunedb.models._xgboost.threads_to_use`."""
        for booster in self.boosters:
            booster.set_param({"nthread": threads_to_use(threads)})

    def check(self, feature_set: NamedSet | Dataset) -> None:
        """Raise UsageError where rows of a feature set are not what the model was trained on."""
        name = getattr(feature_set, "feature_set", None) or feature_set.name  # type: ignore[union-attr]
        mine, given = (self.feature_set, self.version), (name, feature_set.version)
        if mine != given:
            raise UsageError(
                f"the model was trained on features {mine[0]} version {mine[1]}, not on "
                f"{given[0]} version {given[1]}; rebuild: tunedb train --features {name}"
            )
        if self.columns != feature_set.columns:
            raise UsageError(
                f"features {name} version {mine[1]} have other columns than the model was trained "
                f"on ({len(feature_set.columns)}, {len(self.columns)}); "
                f"rebuild: tunedb train --features {name}"
            )

    def scores(self, rows: NDArray[np.float32], starts: NDArray[np.int64]) -> Floats:
        """Return a score for each program; the higher, the faster.

        Parameters
        ----------
        rows : ndarray of float32, shape (m, columns)
            Rows of the model's feature set. NaN is a missing value to the trees.
        starts : ndarray of int64, shape (n + 1,)
            The rows of program i are ``rows[starts[i]:starts[i + 1]]``.

        Returns
        -------
        ndarray of float64, shape (n,)

        Raises
        ------
        UsageError
            Rows of another number of columns.
        """
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            raise UsageError(
                f"rows of shape {rows.shape} do not fit a model of features "
                f"{self.feature_set} version {self.version}, which has {len(self.columns)} columns"
            )
        seen, at = self.row_model.rows(rows, starts)
        total = np.zeros(len(starts) - 1)
        if len(seen):
            for booster in self.boosters:
                # No DMatrix is made: that takes longer than the trees.
                found = booster.inplace_predict(seen, validate_features=False)
                total += segmented(np.add, found.astype(np.float64), at)
        return total / len(self.boosters)

    def score_programs(self, programs: Sequence[NDArray[Any]]) -> Floats:
        """Return a score for each program, given the rows of each, shape (any, columns)."""
        return self.scores(*stacked(programs, len(self.columns)))

    def score_examples(self, examples: Dataset) -> Floats:
        """Return a score for each program of a set; raises as :meth:`check` does."""
        self.check(examples)
        return self.scores(examples.rows, examples.starts)

    def to_bytes(self) -> bytes:
        """Return the model without pickle; equal models of equal versions have equal bytes."""
        raw = [bytes(booster.save_raw("ubj")) for booster in self.boosters]
        header = identity.canonical_json(
            {
                "recipe": asdict(self.recipe),
                "rows": self.rows,
                "feature_set": self.feature_set,
                "version": self.version,
                "columns": self.columns,
                "boosters": [len(one) for one in raw],
                "xgboost": import_xgboost().__version__,
            }
        )
        payload = b"".join((_LENGTH.pack(len(header)), header, *raw))
        return b"".join((_MAGIC, identity.digest("model body", payload), payload))

    @classmethod
    def from_bytes(cls, data: bytes, *, threads: int | None = None) -> Self:
        """Return the model of :meth:`to_bytes`.

        XGBoost reads boosters that it believes, so only bytes that one made oneself should come
        here; the digest tells damage from them, not malice.

        Parameters
        ----------
        data : bytes
            The model.
        threads : int, optional
            See :meth:`use_threads`.

        Raises
        ------
        FormatError
            Damaged, or no model.
        LimitError
            Larger than any model may be.
        UsageError
            Written by a newer tunedb or XGBoost.
        """
        header, raw = _unpack(data)
        _check_versions(header["xgboost"])
        model = cls(
            recipe=Recipe.from_dict(header["recipe"]),
            feature_set=header["feature_set"],
            version=header["version"],
            columns=tuple(header["columns"]),
            boosters=tuple(_load(one) for one in raw),
            rows=header["rows"],
        )
        width = len(model.tree_columns)
        if any(booster.num_features() != width for booster in model.boosters):
            raise FormatError(f"the model's boosters do not have {width} columns")
        model.use_threads(threads)
        return model


def _unpack(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header, and the bytes of each booster."""
    if len(data) > limits.MAX_BODY_BYTES:
        raise LimitError(f"a model of {len(data)} bytes; the limit is {limits.MAX_BODY_BYTES}")
    kind, at = len(_MAGIC) - 1, len(_MAGIC) + identity.DIGEST_BYTES
    if data[:kind] != _MAGIC[:kind]:
        raise FormatError("not a tunedb model; train one: tunedb train")
    if data[kind : kind + 1] > _MAGIC[kind:]:
        raise UsageError("the model was written by a newer tunedb; rebuild: tunedb train")
    payload = data[at:]
    if data[kind + 1 : at] != identity.digest("model body", payload) or len(payload) < 4:
        raise FormatError("the model is damaged; rebuild: tunedb train")
    (length,) = _LENGTH.unpack_from(payload)
    header = parse_json(payload[4 : 4 + length])
    if not isinstance(header, dict) or header.keys() != _HEADER_KEYS:
        raise FormatError("the model has another header; rebuild: tunedb train")
    sizes, bodies = header["boosters"], payload[4 + length :]
    if not 1 <= len(sizes) <= MOST_MEMBERS or sum(sizes) != len(bodies) or min(sizes) < 1:
        raise FormatError("the model's boosters have other sizes; rebuild: tunedb train")
    ends = np.cumsum([0, *sizes]).tolist()
    return header, [bodies[begin:end] for begin, end in pairwise(ends)]


def _check_versions(written_by: str) -> None:
    """Raise UsageError for a model of a newer XGBoost."""
    mine = import_xgboost().__version__
    if _numbers(written_by) > _numbers(mine):
        raise UsageError(
            f"the model was written by XGBoost {written_by}, but this is {mine}; "
            "rebuild: tunedb train"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _load(raw: bytes) -> Any:
    xgboost = import_xgboost()
    booster = xgboost.Booster()
    try:
        booster.load_model(bytearray(raw))
    except xgboost.core.XGBoostError as error:
        reason = str(error).partition("\n")[0]
        raise FormatError(f"XGBoost cannot read the model ({reason}); rebuild") from None
    return booster
