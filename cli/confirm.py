"""Asking before something is removed for good."""

from __future__ import annotations

import sys

import click


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; elsewhere ``--yes`` must have been given.

    Parameters
    ----------
    question : str
        What is about to happen; it is asked whether to do so.
    yes : bool
        The value of ``--yes``.

    Raises
    ------
    click.Abort
        The answer is no.
    UsageError
        Nobody can be asked.
    """
    from ..errors import UsageError

    if yes:
        return
    # None where the descriptor was closed, as some services start programs.
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            "cannot ask for confirmation without a terminal; give --yes, or preview with --dry-run"
        )
    click.confirm(question, abort=True, err=True)
