"""Groups that import a command when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

import click


class LazyGroup(click.Group):
    """A group that lists its commands by module and summary.

    Parameters
    ----------
    lazy : mapping
        Name of a command → (module of this package, attribute, summary). The summary repeats the
        first line of the command's help, so that the list needs no import.
    """

    def __init__(
        self, *args: Any, lazy: Mapping[str, tuple[str, str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy: dict[str, tuple[str, str, str]] = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the mapping."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in self.lazy:
            return None
        module, attribute, _ = self.lazy[cmd_name]
        command = getattr(import_module(f".{module}", __package__), attribute)
        return cast("click.Command", command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, or fail and suggest one."""
        name = args[0]
        if name not in self.lazy and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            similar = get_close_matches(name, self.lazy, n=1)
            advice = (
                f"Did you mean {similar[0]!r}?" if similar else f"See '{ctx.command_path} --help'."
            )
            ctx.fail(f"No such command {name!r}. {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        rows = [(name, summary) for name, (_, _, summary) in self.lazy.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
