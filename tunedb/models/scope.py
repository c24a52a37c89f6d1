"""Scopes: the selection of records for a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..storage.store import Store


@dataclass(frozen=True, slots=True)
class Scope:
    """A selection of records by workload, target and source; None selects all.

    Parameters
    ----------
    workload_ids, target_ids, source_ids : sequence of int or None
        Local numbers.
    """

    workload_ids: Sequence[int] | None = None
    target_ids: Sequence[int] | None = None
    source_ids: Sequence[int] | None = None

    def ids(self) -> dict[str, Sequence[int] | None]:
        """Return the numbers as keyword arguments of queries."""
        return {
            "workload_ids": self.workload_ids,
            "target_ids": self.target_ids,
            "source_ids": self.source_ids,
        }

    def to_json(self, store: Store) -> dict[str, Any]:
        """Return digests, which all copies of a database share, and names, for a card."""
        names: dict[str, Any] = {"workloads": None, "targets": None, "sources": None}
        if self.workload_ids is not None:
            workloads = (store.workloads.get(id_) for id_ in self.workload_ids)
            names["workloads"] = [_named(workload.digest, workload.name) for workload in workloads]
        if self.target_ids is not None:
            targets = map(store.targets.get, self.target_ids)
            names["targets"] = [_named(target.digest, target.label) for target in targets]
        if self.source_ids is not None:
            sources = store.sources.numbered(self.source_ids)
            names["sources"] = [_named(digest, source.name) for _, digest, source in sources]
        return names

    @classmethod
    def from_json(cls, store: Store, values: Mapping[str, Any]) -> Scope:
        """Return the scope of the values of :meth:`to_json`; entries deleted since are left out."""

        def ids(kind: str, find: Callable[[bytes], int | None]) -> list[int] | None:
            if values[kind] is None:
                return None
            stored_ids = (find(bytes.fromhex(named["digest"])) for named in values[kind])
            return [id_ for id_ in stored_ids if id_ is not None]

        sources = {digest: id_ for id_, digest, _ in store.sources.numbered()}
        return cls(
            workload_ids=ids("workloads", store.workloads.id_of),
            target_ids=ids("targets", store.targets.id_of),
            source_ids=ids("sources", sources.get),
        )


#: All records.
EVERYTHING = Scope()


def _named(digest: bytes, name: str) -> dict[str, str]:
    return {"digest": digest.hex(), "name": name}
