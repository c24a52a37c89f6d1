"""Hooks of the documentation site: the help of all commands, and references in docstrings."""

import re
from typing import Any

import click

from tunedb.cli import main

#: A reference of Sphinx in a docstring, after Markdown has made code of its name.
ROLE = re.compile(r":(?:class|data|func|meth|mod|attr):<code>[~.]*([^<]*)</code>")


def helps(command: click.Command, context: click.Context, depth: int = 2) -> list[str]:
    """Return a command's help as Markdown, then that of its commands."""
    path = context.command_path
    lines = [f"{'#' * depth} {path}", "", "```text", command.get_help(context), "```", ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                inner = click.Context(found, parent=context, info_name=name, max_content_width=96)
                lines += helps(found, inner, min(depth + 1, 3))
    return lines


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write the help of all commands where their page has a mark."""
    if page.file.src_path != "commands.md":
        return markdown
    context = click.Context(main, info_name="tunedb", max_content_width=96)
    return markdown.replace("{{ commands }}", "\n".join(helps(main, context)))


def on_page_content(html: str, **_: Any) -> str:
    """Show references in docstrings as names."""
    return ROLE.sub(r"<code>\1</code>", html)
