"""Code of the worker processes that try design spaces for :func:`~.space_probe.try_spaces`."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from .. import winograd as _rules  # noqa: F401 - registers them
from ..intrinsics import load_cpu_intrinsics, without_intrinsics
from ..space import space_of


def try_space(pickled: bytes) -> None:
    """Generate a design space and a random program of each part, postprocessed as in the search.

    Only a crash or a hang of this process counts: the tuning process handles errors itself.

    Parameters
    ----------
    pickled : bytes
        ``(mod, target, space, seed)``, as ``TuneContext`` takes them.
    """
    with suppress(Exception), without_intrinsics():
        task = pickle.loads(pickled)  # noqa: S301 - from our own parent
        try:
            _try(*task)
        except Exception:
            # Rules for VNNI, AVX-512 and dot products look intrinsics up.
            load_cpu_intrinsics()
            _try(*task)


def _try(mod: Any, target: Any, space: Any, seed: int) -> None:
    generator = space_of(space, target)
    context = ms.TuneContext(
        mod, target=target, space_generator=generator, num_threads=1, rand_state=seed
    )
    for design in context.generate_design_space():
        with suppress(Exception):  # a part may fail where others do not
            schedule = Schedule(mod, seed=seed, debug_mask="none")
            Trace(design.trace.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            all(post.apply(schedule) for post in context.space_generator.postprocs)
