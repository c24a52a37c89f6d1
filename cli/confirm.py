"""Confirmation of a change that cannot be undone."""

from __future__ import annotations

import sys

import click


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on a terminal; elsewhere require ``--yes``.

    Parameters
    ----------
    question : str
        The question, which names the change.
    yes : bool
        The value of ``--yes``.

    Raises
    ------
    click.Abort
        The user declined.
    UsageError
        There is no terminal, and `yes` is false.
    """
    from ..errors import UsageError

    if yes:
        return
    # None if the descriptor is closed: some services start programs so.
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            "cannot ask for confirmation without a terminal; give --yes, or preview with --dry-run"
        )
    click.confirm(question, abort=True, err=True)
