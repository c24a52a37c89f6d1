"""Target strings of legacy logs, from every TVM since 0.4, parsed leniently.

The text is a kind with options (``cuda -model=v100``, ``llvm -mcpu skylake --system-lib``), or a
JSON configuration. The parser accepts unknown kinds and options, because newer versions of TVM
reject many old targets. Quotes and escapes follow ``TargetInternal::Interpret``
(``src/target/target.cc``, apache/tvm v0.10 to v0.21).
"""

from __future__ import annotations

import re
from functools import lru_cache
from reprlib import repr as short
from typing import Any

import orjson

from .. import limits
from ..errors import FormatError
from ..identity import canonical_json
from ..json_checks import check_value
from ..records import Target

#: Options whose values are lists in a target's configuration.
_LISTS = frozenset({"keys", "libs", "mattr"})

#: Options whose values are text, even if they look like numbers (``-model=1080``).
_NAMES = frozenset({"arch", "device", "host", "march", "mcpu", "model", "mtriple", "tag"})

_TOKEN = re.compile(r"""(?:\\.|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\S)+""", re.DOTALL)
_QUOTED = re.compile(r"""\\.|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)


@lru_cache(maxsize=1024)
def parse_target(text: str) -> Target:
    """Return the target of a legacy log's text; ``Target.text`` keeps the text.

    ``Target.config`` has the kind and the options by name: whole numbers as integers, ``keys``,
    ``libs`` and ``mattr`` as lists, a flag without a value as 1, a repeated option as the list of
    its values. ``-target=`` of TVM < 0.7 becomes ``mtriple``. Words outside of options are under
    ``words``.

    Raises
    ------
    FormatError
        The text is empty, too long, has NUL or lone surrogates, or starts like JSON and is not a
        configuration.
    """
    if not text.strip():
        raise FormatError("a target without a kind")
    if len(text) > limits.MAX_TARGET_CHARS:
        raise FormatError(f"a target of {len(text)} characters is over {limits.MAX_TARGET_CHARS}")
    if "\0" in text or (not text.isascii() and _has_surrogates(text)):
        raise FormatError("a target with NUL or lone surrogates, which no database could keep")
    config = _read_json(text) if text.lstrip().startswith("{") else _read_options(text)
    return Target(config["kind"], canonical_json(config), text)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _read_json(text: str) -> dict[str, Any]:
    """Return the configuration of a JSON target."""
    try:
        config = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise FormatError(f"a target is not JSON: {error}") from None
    kind = config.setdefault("kind", "unknown")
    if not isinstance(kind, str) or not kind or "\0" in kind:
        raise FormatError(f"a target's kind must be text, not {short(kind)}")
    check_value(config, "a target")
    return config  # type: ignore[no-any-return]


def _read_options(text: str) -> dict[str, Any]:
    """Return the configuration of ``kind -key=value -key value -flag``."""
    tokens = _TOKEN.findall(text)
    options: dict[str, list[Any]] = {}
    kind = "unknown" if _is_option(tokens[0]) else _unquote(tokens[0])
    position = 0 if _is_option(tokens[0]) else 1
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if not _is_option(token):
            options.setdefault("words", []).append(_unquote(token))
            continue
        key, equals, value = token.lstrip("-").partition("=")
        if not equals and position < len(tokens) and not _is_option(tokens[position]):
            value = tokens[position]
            position += 1
        elif not equals:
            value = "1"
        # An option named "kind" must not replace the target's kind.
        name = "-kind" if key == "kind" else key
        options.setdefault(name, []).extend(_values(key, _unquote(value)))
    if "target" in options and "mtriple" not in options:
        options["mtriple"] = options.pop("target")
    config = {
        key: values if key in _LISTS or key == "words" or len(values) != 1 else values[0]
        for key, values in options.items()
    }
    return {"kind": kind or "unknown", **config}


def _is_option(token: str) -> bool:
    """Return True if a token begins an option; a dash before a digit is a number's sign."""
    name = token.lstrip("-")
    return token[0] == "-" and name[:1] not in ("", "=") and not name[0].isdigit()


def _values(key: str, value: str) -> list[Any]:
    """Return the values of an option: several for a list, otherwise one."""
    if key in _LISTS:
        return [item for item in value.split(",") if item]
    if key not in _NAMES and key != "target" and _INTEGER.fullmatch(value):
        return [int(value)]
    return [value]


def _unquote(text: str) -> str:
    """Return text without quotes, with escapes resolved."""
    if "'" not in text and '"' not in text and "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        piece = match.group()
        return piece[1:] if piece[0] == "\\" else _ESCAPE.sub(r"\1", piece[1:-1])

    return _QUOTED.sub(plain, text)
