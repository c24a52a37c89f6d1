"""Layers: read-only databases behind the user's own (``--layer``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from ..system import text
from .module import one_target

if TYPE_CHECKING:
    from ..programs.workload_info.structure import Structure
    from ..records import Alias, Target
    from ..storage.store import Store
    from .options import Settings

F = TypeVar("F", bound=Callable[..., Any])

#: A workload's digest, or one of its names with the structure that confirms the name.
Key: TypeAlias = "bytes | tuple[Alias, Structure]"


def layer_option(function: F) -> F:
    """Add ``--layer`` to a command, as ``layers`` for :func:`resolve_layers`."""
    return click.option(
        "--layer",
        "layers",
        metavar="URL",
        multiple=True,
        help="Database to read where yours has no record; may be repeated. "
        "Default: layers in tunedb.toml.",
    )(function)


def prior_option(function: F) -> F:
    """Add ``--prior`` to a command."""
    return click.option(
        "--prior",
        metavar="FILE",
        help="Prior below all databases (tunedb bundle --as-prior). Default: TUNEDB_PRIOR, or that "
        "of this release.",
    )(function)


def prior_options(function: F) -> F:
    """Add ``--prior`` and ``--no-prior`` to a command, for :func:`prior_of`."""
    return prior_option(click.option("--no-prior", is_flag=True, help="Use no prior.")(function))


def measured_on(card: Mapping[str, Any]) -> str:
    """Return the processors of a prior's card, for people."""
    cpus = ", ".join(str(machine.get("cpu", "unknown")) for machine in card["machines"])
    return cpus or "unknown machines"


def prior_of(prior: str | None, no_prior: bool) -> str:
    """Return the prior of a command line, as :class:`Database` takes it."""
    if no_prior and prior is not None:
        raise click.UsageError("--prior and --no-prior exclude one another")
    return "none" if no_prior else prior or "auto"


@contextmanager
def open_prior() -> Iterator[Store | None]:
    """Yield the database of the prior; None where there is none, or it cannot be read."""
    from contextlib import ExitStack, suppress

    from ..errors import TuneDBError
    from ..exchange.prior import prior_path, unpacked
    from ..storage.store import Store

    path, store = prior_path("auto"), None
    with ExitStack() as stack:
        if path is not None:
            with suppress(TuneDBError):
                store = stack.enter_context(Store(unpacked(path), read_only=True))
        yield store


def resolve_layers(settings: Settings, urls: tuple[str, ...]) -> tuple[str, ...]:
    """Return the layers of the command line, or else of ``tunedb.toml``."""
    from ..storage.config import locate_layers

    # Raises for a tunedb.toml that is rejected but would name the database; warns once otherwise.
    settings.locate()
    return locate_layers(urls)


@contextmanager
def open_layers(settings: Settings, own: Store, urls: Iterable[str]) -> Iterator[list[Store]]:
    """Yield the layers that can be read; warn about each of the others.

    Raises
    ------
    UsageError
        A layer is no valid URL.
    """
    from contextlib import ExitStack

    from ..errors import TuneDBError, UsageError
    from ..exchange.peers import check_layer, open_layer, skipped_message

    with ExitStack() as stack:
        layers = []
        for url in urls:
            location = check_layer(url)
            try:
                layer = open_layer(url, own)
            except UsageError:
                raise
            except TuneDBError as error:
                settings.warn(skipped_message(location, str(error)))
                continue
            if layer is not None:
                layers.append(stack.enter_context(layer))
        yield layers


def layer_name(location: str | None) -> str:
    """Return a layer's name for a table; nothing for the user's own database."""
    return "" if location is None else text.short_path(location)


def layered_target(
    settings: Settings, own: Store, words: str | None, layers: tuple[str, ...]
) -> Target:
    """Return the target that `words` name in the first database that has it.

    Raises
    ------
    NotFoundError
        No database has it; the message is that of :func:`.module.one_target` for the user's own.
    UsageError
        The words match several targets.
    """
    from ..errors import NotFoundError

    try:
        return one_target(own, words)
    except NotFoundError:
        with open_layers(settings, own, layers) as stores:
            for store in stores:
                try:
                    return one_target(store, words)
                except NotFoundError:
                    continue
        raise


class AnsweredWorkloads:
    """Pairs of workload and target that a database has answered already.

    Workloads of two databases are equal if their digests are, or if they share an accepted name
    and their structures agree.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[Key, bytes]] = set()

    def add(self, store: Store, group: list[int], target_id: int) -> bool:
        """Record a database's answer; return True if it is the first one."""
        target = store.targets.get(target_id).digest
        pairs = {(key, target) for key in workload_keys(store, group)}
        is_new = pairs.isdisjoint(self._seen)
        self._seen |= pairs
        return is_new


def workload_keys(store: Store, group: list[int]) -> set[Key]:
    """Return the digests of workloads and their accepted names."""
    from ..records import LOOSE
    from ..storage.names import AliasTrust

    keys: set[Key] = {store.workloads.get(id_).digest for id_ in group}
    for id_ in group:
        keys.update(
            (name, store.names.structure(id_))
            for name, trust in store.names.aliases(id_)
            if trust > AliasTrust.FOREIGN and not name.scheme.endswith(LOOSE)
        )
    return keys


def workloads_in(layer: Store, keys: set[Key] | None, words: str) -> list[int]:
    """Return the ids of a layer's workloads that match; an empty list if none does.

    Parameters
    ----------
    layer : Store
        The layer.
    keys : set or None
        Keys of the workload that `words` name in the user's own database; None if it has none.
    words : str
        A name or the beginning of a digest; a number is an id of the user's own database.
    """
    from ..errors import NotFoundError

    if keys is None:
        if words.isdigit():
            return []
        try:
            return layer.lookup.workload(words)
        except NotFoundError:
            return []
    ids: set[int] = set()
    for key in keys:
        if isinstance(key, bytes):
            id_ = layer.workloads.id_of(key)
            ids |= set() if id_ is None else {id_}
        else:
            name, structure = key
            ids.update(
                id_
                for id_ in layer.names.confirmed([name], lambda _: True, links=False)
                if layer.names.structure(id_).agrees(structure)
            )
    return sorted(ids)


def targets_in(layer: Store, own: Store, words: str | None) -> list[int] | None:
    """Return the ids of a layer's targets, None for all; a number is an id of `own`."""
    if words is None:
        return None
    if words.isdigit():
        digests = [own.targets.get(id_).digest for id_ in own.lookup.targets(words)]
        return [id_ for id_ in map(layer.targets.id_of, digests) if id_ is not None]
    return layer.lookup.targets(words)
