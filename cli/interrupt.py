"""The end of a command by Ctrl-C."""

from __future__ import annotations

import click

#: Exit code of an interrupted command, as of shells: 128 and the number of SIGINT.
INTERRUPTED = 130


def interrupted(message: str) -> click.exceptions.Exit:
    """Print to stderr what stays stored; return the exception that ends the command."""
    click.echo(message, err=True)
    return click.exceptions.Exit(INTERRUPTED)
