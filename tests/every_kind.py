"""Records of several kinds, for tests of what people and their tools read."""

import sqlite3
from contextlib import closing

import psycopg
from builders import make_measurement, make_target, make_workload
from sqlalchemy.engine import make_url

from tunedb.launches import CounterSet, Launch
from tunedb.records import (
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Session,
    Status,
    Trace,
    Workload,
)

NOW = 1_767_225_600_123_456
TIMEOUT = Failure(FailureKind.TIMEOUT, Phase.RUN, "killed after 10 s", 10.0)
COUNTERS = CounterSet("ncu", "2026.1", "7.5", (("warps", "%"),))


def ansor(numbers):
    """Return a measurement of auto_scheduler, with decisions as it stores them."""
    workload = Workload("ansor-key", b'["matmul", 64, 64, 64]', "matmul")
    sketch = b'{"layout_rewrite":0,"steps":[["SP",2,0,null,[null,null],1]]}'
    return Measurement(Program(workload, make_target(), Trace(sketch, None, numbers)), (0.5,))


def measurements():
    """Return the records: two tasks, two failures, a launch, and one that was cut short."""
    session = Session("night", NOW, b'{"cpu":"a \\"b\\"","cores":4}')
    workload = make_workload(1)
    donor = make_measurement(1, workload=workload).program.digest
    launch = Launch("gemm", 128, (32, 2, 2), None, 0, 40, 1024, 0, 0.25, COUNTERS, (50.0,))
    return [
        make_measurement(0, (0.5, 0.25), workload=workload, session=session, measured_at=NOW),
        make_measurement(1, (0.125,), workload=workload, origin=Origin.MUTATED, donor=donor),
        make_measurement(2, None, workload=workload, session=session, failure=TIMEOUT),
        make_measurement(3, (1e10,), workload=workload, status=Status.FAILED),
        make_measurement(4, (0.0625,), workload=workload, launches=(launch,)),
        ansor(bytes([64, 0x80 | 44, 2, 0])),
        ansor(b""),
        make_measurement(6, (1e-9,), workload=workload, status=Status.CUT_SHORT),
    ]


def rows_of(url, query):
    """Return the rows of a query as people's tools read them, as dictionaries."""
    if "://" in url:
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        with closing(psycopg.connect(plain)) as connection:
            cursor = connection.execute(query)
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
    with closing(sqlite3.connect(url)) as connection:
        # The strictest setting: views may call nothing that has an effect.
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]
