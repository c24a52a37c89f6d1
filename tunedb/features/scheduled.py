"""Ansor's columns straight from the scheduled program (docs/features.md, "tunedb.scheduled").

``_scheduled.pyx`` rewrites the program in its flat form as TVM's lowering would leave it, and the
kernel of ``ansor.per_store/tvm`` reads the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import FormatError
from ._scheduled import Scheduler
from .ansor import NAMES, per_store_tvm
from .base import Needs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ._nest import Nest

#: Idle schedulers, which keep their memory; list methods are atomic.
_idle: list[Scheduler] = []


def scheduled_rows(nest: Nest, *, gpu: bool) -> NDArray[np.float64]:
    """Return the rows of a scheduled program.

    Parameters
    ----------
    nest : Nest
        The program as a schedule leaves it.
    gpu : bool
        Whether the target is a GPU.

    Returns
    -------
    ndarray of float64, (n_rows, 164)
        A row for each stored buffer, in the columns of ``ansor.per_store/tvm``.

    Raises
    ------
    FormatError, LimitError
        The program cannot be measured; the message says why.
    """
    scheduler = _idle.pop() if _idle else Scheduler()
    try:
        return per_store_tvm(scheduler.rewrite(nest), gpu=gpu)
    except ValueError as error:
        raise FormatError(str(error)) from None
    finally:
        _idle.append(scheduler)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The feature set ``tunedb.scheduled``."""

    name: str = "tunedb.scheduled"
    version: int = 1
    columns: tuple[str, ...] = NAMES
    needs: Needs = Needs.SCHEDULED

    def nest_rows(self, nest: Nest, *, gpu: bool) -> NDArray[np.float64]:
        """Return the rows of a scheduled program (:func:`scheduled_rows`)."""
        return scheduled_rows(nest, gpu=gpu)


SCHEDULED = Scheduled()
