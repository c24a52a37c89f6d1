"""Small records for tests. Equal numbers make equal records."""

from tunedb.records import (
    Measurement,
    Program,
    Session,
    Source,
    SourceKind,
    Status,
    Target,
    Trace,
    Trust,
    Workload,
)

OWN = Source("own")
FOREIGN = Source("foreign", SourceKind.FILE, Trust.FOREIGN)


def make_workload(number=0, **fields):
    fields.setdefault("name", f"matmul_{number}")
    return Workload("tvm-graph", b'{"nodes":[%d]}' % number, **fields)


def make_target(number=0, **fields):
    config = {"kind": "llvm", "mcpu": "skylake", "num-cores": number + 1}
    return Target.from_config(config, **fields)


#: Instructions that TVM could have written, so that a merge takes them from a foreign source.
SKETCH = (
    b'[["GetBlock",[],["matmul","main"],["b0"]],["GetLoops",["b0"],[],["l1"]],'
    b'["SamplePerfectTile",["l1"],[2,16],["v2","v3"]]]'
)


def make_trace(number=0, *, empty=False, tail=b'[["EnterPostproc",[],[],[]]]'):
    return Trace(b"[]" if empty else SKETCH, tail, b"[[[2,[%d,4]]],[],[]]" % number)


def make_program(number=0, *, workload=0, target=0, empty=False):
    if isinstance(workload, int):
        workload = make_workload(workload)
    if isinstance(target, int):
        target = make_target(target)
    return Program(workload, target, make_trace(number, empty=empty))


def make_session(number=0):
    return Session(f"session-{number}", 1_700_000_000_000_000 + number, b'{"cpu":"x","cores":2}')


def make_measurement(number=0, secs=(0.001,), *, workload=0, target=0, empty=False, **fields):
    """Return the measurement of the program with that number; ``secs=None`` makes a failed one."""
    program = make_program(number, workload=workload, target=target, empty=empty)
    if secs is None:
        fields.setdefault("status", Status.FAILED)
    return Measurement(program, secs, **fields)


def make_batch(marker, size):
    """Return `size` measurements that nobody else makes, all with ``measured_at == marker``."""
    return [
        make_measurement(i % 7, (1e-3 + 1e-6 * i,), measured_at=marker, occurrence=i)
        for i in range(size)
    ]
