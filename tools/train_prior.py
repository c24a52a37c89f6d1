"""Train the models of the prior of this package (docs/prior.md)."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# Models of tests and tools know no prior but the one that is given.
os.environ["TUNEDB_PRIOR"] = "none"

from rich.progress import Progress

from tunedb.exchange.prior import IN_WHEEL
from tunedb.models import prior_models


def train(prior: Path, file: Path) -> None:
    """Train the models of a prior, and write them into a file."""
    from tunedb.plugins.metaschedule.search.prior_training import trained_models

    models = {}
    with Progress() as progress:
        bar = progress.add_task("training the models of the prior", total=None)
        for name, model in trained_models(prior):
            models[name] = model
            facts = model.row.card["training"]
            progress.console.print(
                f"{name}: {facts['programs']:,} programs, {facts['rounds']} rounds, "
                f"{facts['seconds']:.0f} s"
            )
            progress.advance(bar)
    prior_models.write(models, prior, file)
    print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, default=IN_WHEEL, metavar="FILE")
    parser.add_argument("--models", type=Path, default=prior_models.FILE, metavar="FILE")
    options = parser.parse_args()
    train(options.bundle, options.models)


if __name__ == "__main__":
    main()
