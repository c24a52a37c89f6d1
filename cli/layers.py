"""Databases of others behind one's own: ``--layer``, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from . import text
from .module import one_target

if TYPE_CHECKING:
    from ..programs.workload_info.structure import Structure
    from ..records import Alias, Target
    from ..storage.store import Store
    from .options import Settings

F = TypeVar("F", bound=Callable[..., Any])

#: A workload's digest, or a name of it with the structure that confirms the name.
Key: TypeAlias = "bytes | tuple[Alias, Structure]"


def layer_option(function: F) -> F:
    """Give a command ``--layer``, which arrives as ``layers``, for :func:`layers_of`."""
    return click.option(
        "--layer",
        "layers",
        metavar="URL",
        multiple=True,
        help="Database to read where yours has no record; may be repeated. "
        "Default: layers in tunedb.toml.",
    )(function)


def layers_of(settings: Settings, named: tuple[str, ...]) -> tuple[str, ...]:
    """Return the layers that are meant."""
    from ..storage.config import locate_layers

    # A tunedb.toml that does not count is an error where it would name the database, and is said
    # once.
    settings.locate()
    return locate_layers(named)


@contextmanager
def opened(settings: Settings, own: Store, urls: Iterable[str]) -> Iterator[list[Store]]:
    """Yield the layers that can be read; of each other one say why not, in one line.

    Raises
    ------
    UsageError
        A URL is none.
    """
    from contextlib import ExitStack

    from ..errors import TuneDBError, UsageError
    from ..exchange.layer import check_layer, left_out, open_layer

    with ExitStack() as stack:
        found = []
        for url in urls:
            where = check_layer(url)
            try:
                layer = open_layer(url, own)
            except UsageError:
                raise
            except TuneDBError as error:
                settings.warn(left_out(where, str(error)))
                continue
            if layer is not None:
                found.append(stack.enter_context(layer))
        yield found


def layer_name(location: str | None) -> str:
    """Return a layer for a table; nothing for one's own database."""
    return "" if location is None else text.short_path(location)


def layered_target(
    settings: Settings, own: Store, words: str | None, layers: tuple[str, ...]
) -> Target:
    """Return the one target that is meant, by the first database that knows it.

    Raises
    ------
    NotFoundError
        As :func:`.module.one_target` for one's own database, where no layer knows it either.
    UsageError
        Several are meant.
    """
    from ..errors import NotFoundError

    try:
        return one_target(own, words)
    except NotFoundError:
        with opened(settings, own, layers) as others:
            for other in others:
                try:
                    return one_target(other, words)
                except NotFoundError:
                    continue
        raise


class Answered:
    """Which workloads were answered, and for which targets, whatever their numbers are.

    Workloads of two databases are one where their digests are the same, or a name and their
    structures.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[Key, bytes]] = set()

    def add(self, store: Store, group: list[int], target_id: int) -> bool:
        """Note that a database has an answer; return whether none before it had one."""
        target = store.targets.get(target_id).digest
        pairs = {(key, target) for key in keys_of(store, group)}
        is_new = pairs.isdisjoint(self._seen)
        self._seen |= pairs
        return is_new


def keys_of(store: Store, group: list[int]) -> set[Key]:
    """Return the digests of workloads, and their accepted names."""
    from ..records import LOOSE
    from ..storage.names import AliasTrust

    keys: set[Key] = {store.workloads.get(id_).digest for id_ in group}
    for id_ in group:
        keys.update(
            (name, store.names.structure(id_))
            for name, standing in store.names.aliases(id_)
            if standing > AliasTrust.FOREIGN and not name.scheme.endswith(LOOSE)
        )
    return keys


def workloads_in(layer: Store, keys: set[Key] | None, words: str) -> list[int]:
    """Return a layer's workloads that are meant; none where it has none.

    Parameters
    ----------
    layer : Query
        The layer.
    keys : set or None
        Of the workload that one's own database has under these words; None where it has none.
    words : str
        A name or the beginning of a digest; a number is one of one's own database.
    """
    from ..errors import NotFoundError

    if keys is None:
        if words.isdigit():
            return []
        try:
            return layer.lookup.workload(words)
        except NotFoundError:
            return []
    found: set[int] = set()
    for key in keys:
        if isinstance(key, bytes):
            id_ = layer.workloads.id_of(key)
            found |= set() if id_ is None else {id_}
        else:
            name, structure = key
            found.update(
                id_
                for id_ in layer.names.confirmed([name], lambda _: True, links=False)
                if layer.names.structure(id_).agrees(structure)
            )
    return sorted(found)


def targets_in(layer: Store, own: Store, words: str | None) -> list[int] | None:
    """Return a layer's targets that are meant, None for all; a number is of one's own database."""
    if words is None:
        return None
    if words.isdigit():
        known = [own.targets.get(id_).digest for id_ in own.lookup.targets(words)]
        return [id_ for id_ in map(layer.targets.id_of, known) if id_ is not None]
    return layer.lookup.targets(words)
