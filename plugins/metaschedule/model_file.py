"""What TVM's ``save`` and ``load`` of a cost model write and read: no pickle, one file.

Layout: magic with a version byte, BLAKE2b digest of what follows (16 bytes), length of the header
(4 bytes, little-endian), header as canonical JSON, the model as ``Model.to_bytes`` made it. The
header is the row of the model, so that its predictions can be traced; a cost model that has learnt
nothing yet has neither.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from ... import identity, limits
from ...errors import FormatError, LimitError, NotFoundError, StorageError, UsageError
from ...files import read_regular, write_whole
from ...models.model import Model
from ...results import NewModel
from ...values import parse_json
from .learner import scorer_of
from .ledger import Scorer

_MAGIC = b"tunedb-cost-model\x01"
_LENGTH = struct.Struct("<I")
_BEFORE = len(_MAGIC) + identity.DIGEST_BYTES


def save(path: Path, scorer: Scorer | None) -> None:
    """Write a model to a file, which others see as a whole or not at all.

    Parameters
    ----------
    path : Path
        Where to; what stands there is replaced.
    scorer : Scorer or None
        The model; None for a cost model that has learnt nothing.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    header: dict[str, Any] | None = None
    body = b""
    if scorer is not None:
        row = scorer.row
        header = {
            "digest": row.digest.hex(),
            "kind": row.kind,
            "parameters": row.parameters.decode(),
            "training_digest": row.training_digest.hex(),
            "card": row.card,
        }
        body = scorer.model.to_bytes()
    told = identity.canonical_json(header)
    payload = b"".join((_LENGTH.pack(len(told)), told, body))
    data = b"".join((_MAGIC, identity.digest("cost model", payload), payload))
    write_whole(path, data)


def load(path: Path) -> Scorer | None:
    """Return the model of a file; None where it had learnt nothing when it was saved.

    XGBoost believes the bytes that it reads, so load only files that you saved yourself; the
    digest tells damage from them, not malice.

    Raises
    ------
    NotFoundError, StorageError
        There is no such file, or it cannot be read.
    FormatError
        It is no cost model of tunedb (TVM's own ``XGBModel`` saves pickles), or damaged.
    LimitError
        It is larger than any model may be.
    UsageError
        A newer tunedb or XGBoost wrote it.
    """
    data = _read(path)
    version = len(_MAGIC) - 1
    if data[:version] != _MAGIC[:version]:
        raise FormatError(f"{path}: no cost model of tunedb; save one with CostModel.save")
    if data[version : version + 1] > _MAGIC[version:]:
        raise UsageError(f"{path}: a newer tunedb saved this; upgrade tunedb, or train anew")
    payload = data[_BEFORE:]
    if data[len(_MAGIC) : _BEFORE] != identity.digest("cost model", payload) or len(payload) < 4:
        raise FormatError(f"{path}: the file is damaged; save the cost model again")
    (length,) = _LENGTH.unpack_from(payload)
    header = parse_json(payload[4 : 4 + length])
    if header is None:
        return None
    try:
        row = NewModel(
            digest=bytes.fromhex(header["digest"]),
            kind=header["kind"],
            parameters=header["parameters"].encode(),
            training_digest=bytes.fromhex(header["training_digest"]),
            card=header["card"],
            body=None,
        )
        return scorer_of(Model.from_bytes(payload[4 + length :]), row)
    except (FormatError, UsageError) as error:
        raise type(error)(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError):
        raise FormatError(f"{path}: a cost model with another header; save it again") from None


def _read(path: Path) -> bytes:
    try:
        data = read_regular(path, limits.MAX_BODY_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: no such file; save a cost model there first") from None
    except OSError as error:
        raise StorageError(f"{path}: the cost model cannot be read: {error.strerror}") from None
    if len(data) > limits.MAX_BODY_BYTES:
        raise LimitError(f"{path}: over {limits.MAX_BODY_BYTES} bytes; it is no cost model")
    return data
