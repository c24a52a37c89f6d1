"""What options say of a recipe."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..options import Settings

if TYPE_CHECKING:
    from ...models.scope import Scope
    from ...storage.store import Store


def recipe_field(words: str) -> tuple[str, Any]:
    """Return name and value of a field of the recipe that ``-p NAME=VALUE`` gives.

    Raises
    ------
    UsageError
        There is no such field, or it takes no such value.
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
        takes = {bool: "yes or no", int: "a whole number", float: "a number"}[kind]
        raise UsageError(f"-p {words}: {name} takes {takes}") from None


def chosen_features(settings: Settings, store: Store, named: str | None, scope: Scope) -> str:
    """Return the feature set that is named, or else the one that most programs have."""
    from ...models.store import choose_features

    if named is not None:
        return named
    features = choose_features(store, scope)
    settings.note(f"Features: {features} (--features SET takes another set)")
    return features
