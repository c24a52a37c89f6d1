"""Resumption of interrupted tuning runs.

The sessions of a run carry its key. A repeated run with equal arguments has the same key and
continues an unfinished run: the trials that earlier sessions stored count. After a finished run,
the next one starts from zero.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tvm.s_tir.meta_schedule.tune_context import _normalize_mod

from .... import identity
from ....records import Session
from ....storage.network_runs import NetworkRun
from ....system.host import fingerprint_of
from .. import modules
from ..database.handle import Handle
from ..threads import RuntimeThreads

__all__ = [
    "end_run",
    "run_key",
    "session_of_run",
    "store_network",
    "trials_by_workload",
    "trials_done",
]


def run_key(
    tasks: Iterable[tuple[Any, Any]],
    *,
    max_trials: int,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return the key of a tuning run; equal arguments give equal keys.

    Parameters
    ----------
    tasks : iterable of (IRModule or PrimFunc, tvm Target)
        Tasks of the run, in any order.
    max_trials : int
        Maximum number of trials of all tasks.
    seed : int or None
        Seed of the run.
    settings : mapping or None
        Other arguments that distinguish runs, e.g. the evaluator's settings, as values of JSON.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    parts = sorted(
        (
            modules.to_workload(_normalize_mod(mod)).digest.hex(),
            modules.to_target(target).digest.hex(),
        )
        for mod, target in tasks
    )
    value = [parts, max_trials, seed, dict(settings or {})]
    return identity.digest("tuning_run", identity.canonical_json(value)).hex()


def session_of_run(
    session: Session,
    key: str,
    *,
    max_trials: int,
    evaluator: Mapping[str, Any] | None = None,
    threads: RuntimeThreads | None = None,
) -> Session:
    """Return a new session of a tuning run, with the fingerprint of another session.

    It has the class of that session (:func:`tunedb.system.host.session_class`), unless the
    evaluator's settings or the threads differ: their times are not comparable.

    Parameters
    ----------
    session : Session
        Session of the handle.
    key : str
        Key of the run (:func:`run_key`).
    max_trials : int
        Maximum number of trials of the run.
    evaluator : mapping or None
        Settings of the evaluator, as values of JSON.
    threads : RuntimeThreads or None
        Threads of TVM's runtime; None keeps those of `session`.

    Returns
    -------
    Session
        For :meth:`.handle.Handle.use_session`.
    """
    fingerprint = fingerprint_of(session)
    fingerprint["run"] = {"key": key, "trials": max_trials}
    if evaluator is not None:
        fingerprint["evaluator"] = dict(evaluator)
    if threads is not None:
        fingerprint["threads"] = threads.as_json()
    return _begun_now(fingerprint)


def trials_done(handle: Handle, key: str) -> int:
    """Return the number of stored trials of an unfinished run.

    Parameters
    ----------
    handle : Handle
        Handle of the database.
    key : str
        Key of the run (:func:`run_key`).

    Returns
    -------
    int
        0 where the database has no unfinished run of this key.
    """
    return trials_by_workload(handle, key).total()


def trials_by_workload(handle: Handle, key: str) -> Counter[int]:
    """Return the number of stored trials of an unfinished run for each workload.

    The parameters are those of :func:`trials_done`; workloads have their local numbers.
    """
    runs = handle.store.runs
    sessions: list[int] = []
    passed = 0
    for id_, session in runs.sessions_of_run(key):
        run = fingerprint_of(session)["run"]
        stored, last = runs.trials(id_)
        # Known candidates, which are not stored again, have numbers too.
        passed += max(last + 1, stored)
        sessions.append(id_)
        if run.get("ended") or passed >= run["trials"]:
            sessions, passed = [], 0
    return runs.trials_by_workload(sessions)


def end_run(handle: Handle) -> None:
    """Mark the run of a handle's session as finished, if its stored trials do not show that.

    The last trials may be known programs, which are not stored again, or the search may run out of
    candidates. The mark is a session without measurements.
    """
    fingerprint = fingerprint_of(handle.session())
    if trials_done(handle, fingerprint["run"]["key"]):
        fingerprint["run"]["ended"] = True
        handle.store.sessions.add(_begun_now(fingerprint))


def store_network(handle: Handle, network: NetworkRun) -> None:
    """Store the times of a network under the run of a handle's session."""
    fingerprint = fingerprint_of(handle.session())
    fingerprint["run"]["network"] = network.as_json()
    handle.store.sessions.add(_begun_now(fingerprint))


def _begun_now(fingerprint: Mapping[str, Any]) -> Session:
    return Session(uuid.uuid4().hex, time.time_ns() // 1000, identity.canonical_json(fingerprint))
