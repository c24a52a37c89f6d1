"""``tunedb completion``."""

from __future__ import annotations

import click

from .options import common_options


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    The script completes commands, options, and the database's workloads, targets and sources.

    Example:
      eval "$(tunedb completion bash)"                          # in ~/.bashrc
      eval "$(tunedb completion zsh)"                           # in ~/.zshrc
      tunedb completion fish > ~/.config/fish/completions/tunedb.fish
    """
    from click.shell_completion import get_completion_class

    from ..errors import UsageError

    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise UsageError(f"no completion for {shell}")
    app = context.find_root().command
    click.echo(completion_class(app, {}, "tunedb", "_TUNEDB_COMPLETE").source())
