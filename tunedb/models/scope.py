"""Which records a model is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..storage.store import Store


@dataclass(frozen=True, slots=True)
class Scope:
    """Which records a model is made from; None stands for all.

    Parameters
    ----------
    workload_ids, target_ids, source_ids : sequence of int or None
        Local numbers.
    """

    workload_ids: Sequence[int] | None = None
    target_ids: Sequence[int] | None = None
    source_ids: Sequence[int] | None = None

    def ids(self) -> dict[str, Sequence[int] | None]:
        """Return the numbers as queries take them."""
        return {
            "workload_ids": self.workload_ids,
            "target_ids": self.target_ids,
            "source_ids": self.source_ids,
        }

    def to_json(self, store: Store) -> dict[str, Any]:
        """Return what a card says: digests, which all copies of a database share, and names."""
        found: dict[str, Any] = {"workloads": None, "targets": None, "sources": None}
        if self.workload_ids is not None:
            known = (store.workloads.get(id_) for id_ in self.workload_ids)
            found["workloads"] = [_named(one.digest, one.name) for one in known]
        if self.target_ids is not None:
            targets = map(store.targets.get, self.target_ids)
            found["targets"] = [_named(one.digest, one.label) for one in targets]
        if self.source_ids is not None:
            sources = store.sources.numbered(self.source_ids)
            found["sources"] = [_named(digest, one.name) for _, digest, one in sources]
        return found

    @classmethod
    def from_json(cls, store: Store, values: Mapping[str, Any]) -> Scope:
        """Return the scope of :meth:`to_json`'s values; what is gone since is left out."""

        def ids(kind: str, find: Callable[[bytes], int | None]) -> list[int] | None:
            if values[kind] is None:
                return None
            found = (find(bytes.fromhex(one["digest"])) for one in values[kind])
            return [id_ for id_ in found if id_ is not None]

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
