"""Which records are meant: a part of a database that is merged, bundled, pulled or kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..identity import canonical_json


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are meant. All conditions hold together; an empty one holds for everything.

    Parameters
    ----------
    workloads : tuple of str
        Names, or beginnings of digests in hexadecimal.
    targets : tuple of str
        Kinds (``llvm``) or labels (``llvm skylake-avx512``).
    sources : tuple of str
        Names, or beginnings of digests in hexadecimal.
    since : int
        Measured at this time or later, in microseconds since 1970, UTC; 0 for any time. A record
        without a time is older than everything.
    best : int or None
        Only so many of the fastest records of each workload and target, and beside them
        :attr:`rest`.
    rest : float
        With :attr:`best`: how many of the other records, slow and failed ones, as a share of
        `best`: a cost model that has seen fast programs alone cannot tell slow ones. They are
        spread evenly over the ranks of what is left, and are the same on every machine.
    features : bool
        Give stored features too.
    """

    workloads: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    since: int = 0
    best: int | None = None
    rest: float = 1.0
    features: bool = False

    @property
    def key(self) -> str:
        """Canonical JSON, by which a watermark knows which exchange it is of."""
        return canonical_json(asdict(self)).decode()


EVERYTHING = Selection()
