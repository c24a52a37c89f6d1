"""``tunedb report``."""

from __future__ import annotations

import click

from ..lazy import LazyGroup
from ..options import common_options


@click.group(
    cls=LazyGroup,
    lazy={
        "advisor": (
            "advise.report_advisor",
            "advisor",
            "Write a page about the launches and the advice.",
        ),
    },
)
@common_options
def command() -> None:
    """Write pages about the contents of the database.

    Example:
      tunedb report advisor -o advisor.html
    """
