"""Training in a process of its own, whose memory can be measured. Run as a script.

python external_worker.py URL memory|disk

trains a model on all that a database has, and prints by how many bytes the peak of its memory grew
from when the labels were read, and the digest of the model.
"""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from memory import peak_bytes

from tunedb.features.base import Needs
from tunedb.models._xgboost import import_xgboost
from tunedb.models.dataset import load, with_rows
from tunedb.models.external import fit_external
from tunedb.models.recipe import Recipe
from tunedb.models.training import fit
from tunedb.storage.store import Store

PAGE_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Wide:
    """A set of as many columns as Ansor's."""

    name: str = "wide"
    version: int = 1
    columns: tuple[str, ...] = tuple(f"c{number}" for number in range(164))
    needs: Needs = Needs.STEPS


WIDE = Wide()


def main(url, where):
    recipe = Recipe(features=WIDE.name, loss="squared", training_set="all", rounds=2, patience=1)
    import_xgboost().DMatrix([[0.0]])
    with Store(url, read_only=True) as store:
        labels = load(store, WIDE, rows=False)
        before = peak_bytes()
        if where == "disk":
            fitted = fit_external(store, labels, recipe, page_bytes=PAGE_BYTES, threads=1)
        else:
            fitted = fit(with_rows(store, labels), recipe, threads=1)
        print(peak_bytes() - before, hashlib.sha256(fitted.model.to_bytes()).hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
