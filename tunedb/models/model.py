"""Trained rankers: scores of programs, and serialisation."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from .. import identity, limits
from ..errors import FormatError, LimitError, UsageError
from ..json_checks import parse_json
from ._xgboost import import_xgboost, threads_to_use
from .aggregation import segmented, stacked
from .base import Floats, recipe_part
from .recipe import MOST_MEMBERS, Recipe

if TYPE_CHECKING:
    from ..features.base import NamedSet
    from .base import RowModel
    from .dataset import Dataset

#: Magic bytes of a model; the last one is the version of the layout. Then follow the digest of the
#: rest (16 bytes), the length of the header (4, little-endian), the header as JSON, and the
#: boosters as UBJSON.
_MAGIC = b"tunedb-model\x01"
_LENGTH = struct.Struct("<I")
_HEADER_KEYS = {"recipe", "rows", "feature_set", "version", "columns", "boosters", "xgboost"}

#: Arrays of a tree in XGBoost's JSON that no prediction reads; a leaf's value is a split condition.
_STATISTICS = ("loss_changes", "sum_hessian", "base_weights")


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """An ensemble of boosters on the rows of a feature set.

    A booster scores each row of the row model; the score of a program is the sum over its rows,
    and that of the model the mean over its boosters. A program without rows has the score 0, the
    label of a failed program if the label is a throughput. With ``rank`` and ``relative``, whose
    scores have no origin, 0 is about the mean.

    Parameters
    ----------
    recipe : Recipe
        Recipe of the model.
    feature_set, version : str, int
        Feature set of the rows.
    columns : tuple of str
        Names of the feature set's columns.
    boosters : tuple of xgboost.Booster
        Members of the ensemble.
    rows : str
        Row model: that of the recipe, or ``pack-sum`` if it is equivalent
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
        """Row model of the trees."""
        row_model: RowModel = recipe_part("row model", self.rows)[0]
        return row_model

    @property
    def tree_columns(self) -> tuple[str, ...]:
        """Names of the columns of the trees; ``f12`` of a booster has the index 12, from 0."""
        return self.row_model.columns(self.columns)

    @property
    def rounds(self) -> int:
        """Rounds of boosting over all members."""
        return sum(booster.num_boosted_rounds() for booster in self.boosters)

    def use_threads(self, threads: int | None) -> None:
        """Set the threads for scoring; see :func:`tunedb.models._xgboost.threads_to_use`."""
        for booster in self.boosters:
            booster.set_param({"nthread": threads_to_use(threads)})

    def check(self, feature_set: NamedSet | Dataset) -> None:
        """Raise UsageError if the feature set is not that of the training."""
        name = getattr(feature_set, "feature_set", None) or feature_set.name  # type: ignore[union-attr]
        trained_on, offered = (self.feature_set, self.version), (name, feature_set.version)
        if trained_on != offered:
            raise UsageError(
                f"the model was trained on features {trained_on[0]} version {trained_on[1]}, not "
                f"on {offered[0]} version {offered[1]}; rebuild: tunedb train --features {name}"
            )
        if self.columns != feature_set.columns:
            raise UsageError(
                f"features {name} version {trained_on[1]} have other columns than the model was "
                f"trained on ({len(feature_set.columns)}, {len(self.columns)}); "
                f"rebuild: tunedb train --features {name}"
            )

    def scores(self, rows: NDArray[np.float32], starts: NDArray[np.int64]) -> Floats:
        """Return the score of each program; a higher score predicts a faster program.

        Parameters
        ----------
        rows : ndarray of float32, shape (m, columns)
            Rows of the model's feature set. NaN is a missing value.
        starts : ndarray of int64, shape (n + 1,)
            The rows of program i are ``rows[starts[i]:starts[i + 1]]``.

        Returns
        -------
        ndarray of float64, shape (n,)

        Raises
        ------
        UsageError
            The rows have another number of columns.
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
                # A DMatrix would take longer than the trees.
                margins = booster.inplace_predict(seen, validate_features=False)
                total += segmented(np.add, margins.astype(np.float64), at)
        return total / len(self.boosters)

    def score_programs(self, programs: Sequence[NDArray[Any]]) -> Floats:
        """Return the score of each program, given the rows of each, shape (any, columns)."""
        return self.scores(*stacked(programs, len(self.columns)))

    def score_examples(self, examples: Dataset) -> Floats:
        """Return the score of each program of a dataset; raises as :meth:`check`."""
        self.check(examples)
        return self.scores(examples.rows, examples.starts)

    def compact(self) -> Self:
        """Return the model without the statistics of its trees, more than half of its bytes.

        Scores do not need them. The importance of columns is then unknown.
        """
        return replace(self, boosters=tuple(map(_without_statistics, self.boosters)))

    def to_bytes(self) -> bytes:
        """Serialise the model, without pickle; equal models of equal versions have equal bytes."""
        raw = [bytes(booster.save_raw("ubj")) for booster in self.boosters]
        header = identity.canonical_json(
            {
                "recipe": asdict(self.recipe),
                "rows": self.rows,
                "feature_set": self.feature_set,
                "version": self.version,
                "columns": self.columns,
                "boosters": [len(booster) for booster in raw],
                "xgboost": import_xgboost().__version__,
            }
        )
        payload = b"".join((_LENGTH.pack(len(header)), header, *raw))
        return b"".join((_MAGIC, identity.digest("model body", payload), payload))

    @classmethod
    def from_bytes(cls, data: bytes, *, threads: int | None = None) -> Self:
        """Return the model of :meth:`to_bytes`.

        XGBoost trusts the boosters that it reads, so the bytes must come from a trusted source;
        the digest detects damage, not malice.

        Parameters
        ----------
        data : bytes
            Serialised model.
        threads : int, optional
            See :meth:`use_threads`.

        Raises
        ------
        FormatError
            The bytes are damaged, or no model.
        LimitError
            The model exceeds the size limit.
        UsageError
            A newer tunedb or XGBoost wrote the model.
        """
        header, raw = _unpack(data)
        _check_versions(header["xgboost"])
        model = cls(
            recipe=Recipe.from_dict(header["recipe"]),
            feature_set=header["feature_set"],
            version=header["version"],
            columns=tuple(header["columns"]),
            boosters=tuple(_load(booster) for booster in raw),
            rows=header["rows"],
        )
        width = len(model.tree_columns)
        if any(booster.num_features() != width for booster in model.boosters):
            raise FormatError(f"the model's boosters do not have {width} columns")
        model.use_threads(threads)
        return model


def joined_scores(first: ArrayLike, second: ArrayLike, weight: float) -> list[float]:
    """Return weighted sums of two models' scores of the same programs, each standardised.

    Parameters
    ----------
    first, second : array of float, shape (n,)
        Scores of the models.
    weight : float
        Weight of the second model beside 1 for the first.
    """
    ones, others = np.asarray(first, np.float64), np.asarray(second, np.float64)
    total = np.zeros(len(ones))
    for factor, scores in ((1.0, ones), (weight, others)):
        deviation = scores.std() if len(scores) else 0.0
        if deviation > 0:
            total += factor * (scores - scores.mean()) / deviation
    joined: list[float] = total.tolist()
    return joined


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
    """Raise UsageError if a newer XGBoost wrote the model."""
    installed = import_xgboost().__version__
    if _numbers(written_by) > _numbers(installed):
        raise UsageError(
            f"the model was written by XGBoost {written_by}, but this is {installed}; "
            "rebuild: tunedb train"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(field) for field in version.split(".")[:3] if field.isdigit())


def _without_statistics(booster: Any) -> Any:
    """Return a booster whose nodes have no gain, no Hessian and, inside of a tree, no weight."""
    content = orjson.loads(bytes(booster.save_raw("json")))
    for tree in content["learner"]["gradient_booster"]["model"]["trees"]:
        for name in _STATISTICS:
            tree[name] = [0.0] * len(tree[name])
    return _load(orjson.dumps(content))


def _load(raw: bytes) -> Any:
    xgboost = import_xgboost()
    booster = xgboost.Booster()
    try:
        booster.load_model(bytearray(raw))
    except xgboost.core.XGBoostError as error:
        reason = str(error).partition("\n")[0]
        raise FormatError(f"XGBoost cannot read the model ({reason}); rebuild") from None
    return booster
