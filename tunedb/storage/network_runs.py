"""Times of networks before and after their tuning runs, which sessions store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from ..records import Session
from ..system.host import fingerprint_of
from ..system.one_line import one_line
from ..system.roofline import Roofline

__all__ = ["NetworkRun", "OperatorTime"]


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Time of an operator of a compiled network.

    Parameters
    ----------
    name : str
        Name of the function.
    workload : str or None
        Digest of the workload, in hexadecimal digits; None for a function that is not tuned.
    calls : int
        Calls in one run of the network.
    untuned, seconds : float
        Seconds of all calls in one run, with TVM's default program and with the best one. Functions
        of another algorithm share the untuned time of the exact functions that they replace.
    flop, size : float or None
        Operations of one call, and bytes of its arguments; None if unknown.
    """

    name: str
    workload: str | None
    calls: int
    untuned: float
    seconds: float
    flop: float | None = None
    size: float | None = None

    @property
    def rate(self) -> float | None:
        """Operations per second of all calls; None if unknown."""
        if not self.flop or not self.seconds > 0:
            return None
        return self.calls * self.flop / self.seconds

    def limit_share(self, roofline: Roofline | None) -> float | None:
        """Return the least time on a machine as a share of the time; None if unknown."""
        if roofline is None or self.flop is None or self.size is None or not self.seconds > 0:
            return None
        return self.calls * roofline.seconds(self.flop, self.size) / self.seconds


@dataclass(frozen=True, slots=True)
class NetworkRun:
    """A network before and after its tuning run, measured with equal inputs.

    Parameters
    ----------
    name : str
        Name of the network.
    target : str
        Description of the target.
    threads : int or None
        Threads of TVM's runtime; None on GPUs.
    untuned, latency : float
        Median seconds of one run, with TVM's default programs and with the best ones.
    deviation, tolerance : float
        Largest relative deviation of an output from the untuned network's, and the largest that is
        allowed.
    operators : tuple of OperatorTime
        Slowest first.
    roofline : Roofline or None
        Limits of the machine; None on GPUs.
    weight : float
        Weight of the network in its run.
    latency_target : float or None
        Seconds that sufficed in its run.
    others : tuple of OperatorTime
        Functions of algorithms that are slower in the network, as `operators`.
    """

    name: str
    target: str
    threads: int | None
    untuned: float
    latency: float
    deviation: float
    tolerance: float
    operators: tuple[OperatorTime, ...]
    roofline: Roofline | None = None
    weight: float = 1.0
    latency_target: float | None = None
    others: tuple[OperatorTime, ...] = ()

    __repr__ = one_line

    @property
    def is_accurate(self) -> bool:
        """True if all outputs are within the tolerance."""
        return self.deviation <= self.tolerance

    @property
    def sum_of_operators(self) -> float:
        """Seconds of all operators in one run."""
        return sum(operator.seconds for operator in self.operators)

    @property
    def runtime(self) -> float:
        """Seconds of the runtime itself in one run: calls, allocations, threads."""
        return max(self.latency - self.sum_of_operators, 0.0)

    @property
    def slower(self) -> tuple[OperatorTime, ...]:
        """Operators whose best program is slower than TVM's default by more than a tenth."""
        return tuple(each for each in self.operators if each.seconds > 1.1 * each.untuned)

    def as_json(self) -> dict[str, Any]:
        """Return the value that a session's fingerprint has for the run."""
        return asdict(self)

    @classmethod
    def from_session(cls, session: Session) -> NetworkRun | None:
        """Return the run that a session ends; None if it ends no run of a network."""
        run = fingerprint_of(session).get("run")
        try:
            return msgspec.convert(run["network"], cls) if isinstance(run, dict) else None
        except (KeyError, msgspec.ValidationError):
            return None
