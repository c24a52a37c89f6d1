"""Models of a prior: trained when it is made, and read where nothing else is known.

They are one file of the package beside the prior that they were trained on. No others are read:
XGBoost trusts the boosters that it loads.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FormatError
from ..exchange.prior import IN_WHEEL, digest_of
from ..identity import canonical_json
from ..json_checks import parse_json
from ..results import NewModel
from ..system.files import new_file
from .model import Model

if TYPE_CHECKING:
    from ..features.base import NamedSet

#: Models of the prior of this release.
FILE = IN_WHEEL.with_suffix(".models")

#: Entry with the digest of the prior, and the parts of a model's two entries.
_PRIOR, _ROW, _BODY = "prior", ".json", ".model"

#: Time of all entries, so that equal models make equal files: the first one that a ZIP file knows.
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class PriorModel:
    """A model of a prior.

    Parameters
    ----------
    model : Model
        The model.
    row : NewModel
        Its row, without boosters.
    """

    model: Model
    row: NewModel


def name_of(class_: tuple[str, str], features: NamedSet) -> str:
    """Return the name of the model of a class of targets, as ``llvm-avx2-steps``."""
    return "-".join((*class_, features.name))


def write(models: Mapping[str, PriorModel], prior: Path, file: Path) -> None:
    """Write the models of a prior.

    Parameters
    ----------
    models : mapping of str to PriorModel
        Models by name.
    prior : Path
        The prior's bundle.
    file : Path
        The new file; an existing one is replaced.
    """
    entries = {_PRIOR: digest_of(prior).encode()}
    for name, each in sorted(models.items()):
        row = {
            "digest": each.row.digest.hex(),
            "kind": each.row.kind,
            "parameters": each.row.parameters.decode(),
            "training_digest": each.row.training_digest.hex(),
            "card": each.row.card,
        }
        entries |= {name + _ROW: canonical_json(row), name + _BODY: each.model.to_bytes()}
    with new_file(file, force=True) as path, zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name, _TIME)
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=9)


def read(prior: Path, name: str, file: Path | None = None) -> PriorModel | None:
    """Return a model of a prior; None if there is no such model, or it is of another prior.

    Parameters
    ----------
    prior : Path
        The prior's bundle.
    name : str
        Name of the model.
    file : Path, optional
        The file of :func:`write`; by default that of this release.

    Raises
    ------
    TuneDBError
        The file or the prior is damaged, or a newer XGBoost wrote the model.
    """
    file = file or FILE
    if not file.exists():
        return None
    try:
        with zipfile.ZipFile(file) as archive:
            if archive.read(_PRIOR).decode() != digest_of(prior):
                return None
            row, body = (archive.read(name + part) for part in (_ROW, _BODY))
    except KeyError:
        return None
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        raise FormatError(f"{file}: damaged ({error}); reinstall tunedb") from None
    content = parse_json(row)
    return PriorModel(
        Model.from_bytes(body),
        NewModel(
            bytes.fromhex(content["digest"]),
            content["kind"],
            content["parameters"].encode(),
            bytes.fromhex(content["training_digest"]),
            content["card"],
            None,
        ),
    )
