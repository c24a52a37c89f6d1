"""Commands of a configuration with a variant's values in them."""

from __future__ import annotations

import math
import shlex

from .configuration import PLACEHOLDER, Command
from .running import SHELL
from .variants import Variant


def values_of(variant: Variant) -> dict[str, str]:
    """Return what the words in braces stand for.

    ``maxrregcount`` is missing where the compiler's default is meant.
    """
    x, y, z = variant.block
    values = {
        "block_x": str(x),
        "block_y": str(y),
        "block_z": str(z),
        "threads": str(math.prod(variant.block)),
        "register_flag": "",
        "input": variant.input or "",
    }
    if variant.registers is not None:
        values["maxrregcount"] = str(variant.registers)
        values["register_flag"] = f"-maxrregcount={variant.registers}"
    return values


def command_for(command: Command, variant: Variant) -> tuple[str, ...]:
    """Return the words of a command, ready to be run.

    Parameters
    ----------
    command : tuple of str or str
        Words, each of which stays one argument whatever is put into it; a word that names a limit
        of registers is left out where there is none, and so is ``{register_flag}``. Or a line for
        the shell, into which values are put quoted.
    variant : Variant
        Whose values.
    """
    values = values_of(variant)
    if isinstance(command, str):

        def quoted(name: str) -> str:
            value = values[name]
            return "" if name == "register_flag" and not value else shlex.quote(value)

        return (SHELL, "-c", PLACEHOLDER.sub(lambda match: quoted(match[1]), command))
    words = []
    for word in command:
        names = {match[1] for match in PLACEHOLDER.finditer(word)}
        if "maxrregcount" in names and "maxrregcount" not in values:
            continue
        if word == "{register_flag}" and not values["register_flag"]:
            continue
        words.append(PLACEHOLDER.sub(lambda match: values[match[1]], word))
    return tuple(words)
