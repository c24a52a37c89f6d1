"""Roofline model of a machine (Williams, Waterman and Patterson, CACM 52(4), 2009)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Roofline"]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Limits of a machine with all threads of TVM's runtime.

    Parameters
    ----------
    flops : float
        Floating-point operations per second (float32, a fused multiply-add counts as two).
    bandwidths : tuple of (float, float)
        Bytes that a program reads again and again, and bytes per second then; ascending. The last
        pair is that of the memory, the others those of caches.
    """

    flops: float
    bandwidths: tuple[tuple[float, float], ...]

    def seconds(self, flop: float, size: float) -> float:
        """Return the least time of an operator.

        Parameters
        ----------
        flop : float
            Floating-point operations.
        size : float
            Bytes of the arguments, each of which is read or written once.
        """
        bandwidth = next((rate for bound, rate in self.bandwidths if size <= bound), None)
        return max(flop / self.flops, size / (bandwidth or self.bandwidths[-1][1]))
