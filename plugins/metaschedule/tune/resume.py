"""Tuning runs that go on where they stopped.

A run has a key, which its sessions carry. A run that is repeated with equal arguments is the same
run while trials of it are left: those that its earlier sessions stored count. When all are done, or
the run has ended, the next one begins anew.
"""

from __future__ import annotations

import time
import uuid
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

__all__ = ["end_run", "run_key", "session_of_run", "store_network", "trials_done"]


def run_key(
    tasks: Iterable[tuple[Any, Any]],
    *,
    max_trials: int,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return the key of a tuning run: equal arguments have equal keys.

    Parameters
    ----------
    tasks : iterable of (IRModule or PrimFunc, tvm Target)
        What is tuned; their order does not matter.
    max_trials : int
        Trials of all tasks together.
    seed : int or None
        The run's seed.
    settings : mapping or None
        What else makes it another run, e.g. the evaluator's settings; values that JSON has.

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
    """Return a new session, like another one, that says which tuning run it belongs to.

    Its class is that of the other (:func:`tunedb.system.host.session_class`), unless the
    evaluator's settings or other threads are told: times of other settings do not compare.

    Parameters
    ----------
    session : Session
        That of the handle, whose :meth:`~.handle.Handle.use_session` takes what is returned.
    key : str
        Of :func:`run_key`.
    max_trials : int
        Trials of the whole run.
    evaluator : mapping or None
        The evaluator's settings, values that JSON has.
    threads : RuntimeThreads or None
        Those of TVM's runtime; None keeps what the session says.
    """
    said = fingerprint_of(session)
    said["run"] = {"key": key, "trials": max_trials}
    if evaluator is not None:
        said["evaluator"] = dict(evaluator)
    if threads is not None:
        said["threads"] = threads.as_json()
    return _begun_now(said)


def trials_done(handle: Handle, key: str) -> int:
    """Return how many trials of an unfinished run are stored.

    Parameters
    ----------
    handle : Handle
        The database.
    key : str
        Of :func:`run_key`.

    Returns
    -------
    int
        0 where there is no such run, all of its trials are done, or it has ended.
    """
    store = handle.store
    done = passed = 0
    for id_, session in store.runs.sessions_of_run(key):
        if fingerprint_of(session)["run"].get("ended"):
            done = passed = 0
            continue
        stored, last = store.runs.trials(id_)
        done += stored
        # Candidates that were not measured again take a number, too.
        passed += max(last + 1, stored)
        if passed >= fingerprint_of(session)["run"]["trials"]:
            done = passed = 0
    return done


def end_run(handle: Handle) -> None:
    """Note that the run of a handle's session has ended, where nothing else tells.

    Its last trials may be known programs, of which nothing is stored, or the search found no more.
    A session without measurements then says so.
    """
    said = fingerprint_of(handle.session())
    if trials_done(handle, said["run"]["key"]):
        said["run"]["ended"] = True
        handle.store.sessions.add(_begun_now(said))


def store_network(handle: Handle, network: NetworkRun) -> None:
    """Store what the run of a handle's session came to for its network."""
    said = fingerprint_of(handle.session())
    said["run"]["network"] = network.as_json()
    handle.store.sessions.add(_begun_now(said))


def _begun_now(fingerprint: Mapping[str, Any]) -> Session:
    return Session(uuid.uuid4().hex, time.time_ns() // 1000, identity.canonical_json(fingerprint))
