"""``tunedb advise``."""

from __future__ import annotations

import click

from ..lazy import LazyGroup
from ..options import common_options


@click.group(
    cls=LazyGroup,
    lazy={
        "show": ("advise.show", "show", "Advise whether a kernel's block should grow or shrink."),
        "train": ("advise.train", "train", "Train the advisor on the launches of the database."),
        "evaluate": (
            "advise.evaluate",
            "evaluate",
            "Evaluate the advice on held-out kernels and devices.",
        ),
        "launches": (
            "advise.launches",
            "launches",
            "Fill in the launches of TVM's own GPU programs.",
        ),
        "configure": (
            "advise.configure",
            "configure",
            "Describe the programs to profile.",
        ),
        "collect": (
            "advise.collect",
            "collect",
            "Build, run and profile variants of programs.",
        ),
    },
)
@common_options
def command() -> None:
    """Choose thread-block sizes of GPU kernels.

    Example:
      tunedb import logs ./profiles && tunedb advise train && tunedb advise show matrixMul
    """
