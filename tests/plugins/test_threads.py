"""How many threads TVM's runtime uses, in this process and in those that measure."""

import json
import os
from pathlib import Path

import pytest
from effort import long
from processes import printed

from tunedb.plugins.metaschedule.threads import RuntimeThreads
from tunedb.records import Session
from tunedb.system.host import session_class, threads_of

SCRIPT = Path(__file__).with_name("runtime_threads.py")
VARIABLES = ("TVM_NUM_THREADS", "TVM_BIND_THREADS", "OMP_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
CPUS = sorted(os.sched_getaffinity(0))


def printed_lines(environments, *words, cpus):
    """Return what a fresh process on some of the CPUs prints."""
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    lines = printed(
        *(SCRIPT, json.dumps(environments), *words),
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    return list(map(json.loads, lines.splitlines()))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, RuntimeThreads(6, True)),
        ({"TVM_NUM_THREADS": "3"}, RuntimeThreads(3, True)),
        ({"OMP_NUM_THREADS": "2,4"}, RuntimeThreads(2, True)),
        ({"TVM_NUM_THREADS": "5", "OMP_NUM_THREADS": "2"}, RuntimeThreads(5, True)),
        # TVM reads numbers with C's atoi, and uses at least one thread.
        ({"TVM_NUM_THREADS": "many"}, RuntimeThreads(1, True)),
        ({"TVM_NUM_THREADS": ""}, RuntimeThreads(1, True)),
        ({"TVM_NUM_THREADS": " 4x"}, RuntimeThreads(4, True)),
        ({"TVM_NUM_THREADS": "-2"}, RuntimeThreads(1, True)),
        ({"TVM_BIND_THREADS": "0"}, RuntimeThreads(6, False)),
        ({"TVM_BIND_THREADS": "1"}, RuntimeThreads(6, True)),
        ({"TVM_BIND_THREADS": "yes"}, RuntimeThreads(6, False)),
    ],
)
def test_runtime_threads_reads_environment_variables_as_tvm_does(environment, expected):
    assert RuntimeThreads.from_environment(environment, cores=6) == expected


@pytest.fixture(scope="module")
def on_all_cpus():
    """What a process prints that may use all CPUs: counts of others, and how it tunes."""
    variables = {"TVM_NUM_THREADS": "3"}, {"LOKY_MAX_CPU_COUNT": "1"}, {}, {"OMP_NUM_THREADS": "1"}
    environments = [(each, CPUS) for each in variables]
    environments += [(each, CPUS[-1:]) for each in ({}, {"TVM_NUM_THREADS": "2"})]
    return printed_lines(environments, "pinned", cpus=CPUS)


def test_thread_count_is_bounded_by_variables_and_cpus(on_all_cpus):
    three, loky, free, openmp, one, two, _ = on_all_cpus
    for found, count in ((three, 3), (loky, 1), (one, 1), (two, 2), (free, free["cores"])):
        assert found["threads"] == {"count": count, "pinned": False}
        assert found["num-cores"] == count
        assert found["note"] is None
    cores = free["cores"]
    assert cores <= free["cpus"] == len(CPUS)
    # A note names the variable of OpenMP that leaves cores idle.
    assert openmp["threads"]["count"] == 1
    if cores > 1:
        note = f"use 1 of {cores} cores; set TVM_NUM_THREADS={cores} to use all of them"
        assert openmp["note"] == f"OMP_NUM_THREADS lets TVM {note}"


@pytest.mark.parametrize("cpus", [CPUS, long([CPUS[-1]])], ids=["all CPUs", "one CPU"])
def test_threads_and_processes_use_all_cpus_after_tvm_pinned_a_thread(cpus, on_all_cpus):
    *_, found = on_all_cpus if cpus == CPUS else printed_lines([], "pinned", cpus=cpus)
    count, all_ = found["threads"]["count"], len(cpus)
    assert (found["pinned"], found["inherited"]["pinned"]) == (1, True)
    assert found["now inherited"] == found["threads"] == {"count": count, "pinned": False}
    assert found["released"] == found["xgboost"] == all_
    # Threads of a parallel loop, and the CPUs of the thread that runs it, before and after.
    assert found["thread"] == found["runner"] == [count, all_, all_]
    assert found["builder"] == [all_]


def session(fingerprint):
    return Session("key", 0, json.dumps(fingerprint).encode())


@pytest.mark.parametrize(
    ("fingerprint", "expected"),
    [
        ({"cpu": "x", "threads": {"count": 2, "pinned": False}}, 2),
        ({"cpu": "x", "cores": 4}, None),
        ({"cpu": "x", "cores": 4, "remote": {"key": "board"}}, 4),
        ({"threads": 2}, None),
        ({"threads": {"count": "2"}}, None),
        ({"threads": {"count": 0}}, None),
        ([], None),
    ],
)
def test_threads_of_returns_thread_count_of_a_session_or_none(fingerprint, expected):
    assert threads_of(session(fingerprint)) == expected
    assert threads_of(None) is None


def test_sessions_with_other_threads_have_other_classes():
    threads = [{"count": n, "pinned": p} for n in (1, 2) for p in (False, True)]
    fingerprints = [{"cpu": "x"}, *({"cpu": "x", "threads": each} for each in threads)]
    classes = [session_class(session(one)) for one in fingerprints]
    assert len(set(classes)) == len(classes)
