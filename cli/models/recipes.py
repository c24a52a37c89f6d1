"""Options of recipes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..options import Settings

if TYPE_CHECKING:
    from ...models.scope import Scope
    from ...storage.store import Store


def recipe_field(words: str) -> tuple[str, Any]:
    """Parse ``-p NAME=VALUE`` to the name and value of a field of the recipe.

    Raises
    ------
    UsageError
        The recipe has no such field, or the value has the wrong type.
    """
    from ...errors import UsageError
    from ...models.recipe import Recipe

    name, equals, value = words.partition("=")
    defaults = asdict(Recipe())
    if not equals or name not in defaults:
        raise UsageError(f"-p {words}: give NAME=VALUE of one of: {', '.join(defaults)}")
    kind: type[Any] = type(defaults[name])
    try:
        if kind is bool:
            return name, {"yes": True, "no": False}[value]
        return name, kind(value)
    except (ValueError, KeyError):
        expected = {bool: "yes or no", int: "a whole number", float: "a number"}[kind]
        raise UsageError(f"-p {words}: {name} takes {expected}") from None


def resolve_features(settings: Settings, store: Store, name: str | None, scope: Scope) -> str:
    """Return the named feature set, or by default the one with the most programs."""
    from ...models.store import choose_features

    if name is not None:
        return name
    features = choose_features(store, scope)
    settings.note(f"Features: {features} (choose another set with --features SET)")
    return features
