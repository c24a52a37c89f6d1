"""``tunedb advise``."""

from __future__ import annotations

import click

from ..lazy import LazyGroup
from ..options import common_options


@click.group(
    cls=LazyGroup,
    lazy={
        "show": ("advise.show", "show", "Say whether a kernel's block should grow or shrink."),
        "train": ("advise.train", "train", "Train the advisor on the launches of the database."),
        "evaluate": (
            "advise.evaluate",
            "evaluate",
            "Judge advice on kernels that were held out.",
        ),
        "launches": (
            "advise.launches",
            "launches",
            "Fill in the launches of TVM's own GPU programs.",
        ),
        "configure": (
            "advise.configure",
            "configure",
            "Describe programs whose variants are to be profiled.",
        ),
        "collect": (
            "advise.collect",
            "collect",
            "Make, run and profile variants of programs.",
        ),
    },
)
@common_options
def command() -> None:
    """Choose thread-block sizes of GPU kernels.

    Example:
      tunedb import logs ./profiles && tunedb advise train && tunedb advise show matrixMul
    """
