"""Write the frozen database of the current schema, once, when a schema is released.

    python tests/migrations/make_frozen.py

Tests open copies of ``frozen/*.db`` with every later tunedb. A file that is there is never
written again: it stands for what users have.
"""

import itertools
import math
import sqlite3
import sys
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import builders
from builders import FOREIGN, OWN, make_session, make_target, make_workload

from tunedb import identity
from tunedb.formats.gpu.kernels import gpu_target, kernel_workload
from tunedb.launches import CounterSet, Launch
from tunedb.programs.kernel import split_parameters
from tunedb.records import (
    NO_TARGET,
    Alias,
    Failure,
    FailureKind,
    Measurement,
    Origin,
    Phase,
    Program,
    Quarantined,
    Source,
    SourceKind,
    Status,
    Trace,
    Trust,
    Workload,
)
from tunedb.storage import schema, statements
from tunedb.storage.retractions import Retraction
from tunedb.storage.rows import failure_row
from tunedb.storage.store import Store
from tunedb.storage.trust import insert_retractions
from tunedb.system.compression import compress

HERE = Path(__file__).parent

#: 2026-01-01, in microseconds.
NOW = 1_767_225_600_000_000


def make_program(number, **fields):
    """Return a program with the trace that it has in the first frozen database."""
    sketch = b'[["GetBlock",[],["matmul","main"],["b0"]]]'
    trace = Trace(sketch, b'[["EnterPostproc",[],[],[]]]', b"[[%d,[%d,4]]]" % (number, number))
    return replace(builders.make_program(number, **fields), trace=trace)


def make_measurement(number, secs, *, workload, target=0, **fields):
    """Return the measurement of that program."""
    measured = builders.make_measurement(number, secs, **fields)
    return replace(measured, program=make_program(number, workload=workload, target=target))


def measurements():
    """Return records of every kind, in order."""
    session = make_session()
    script = "# from tvm.script import tirx as T\n…"
    workload = make_workload(1, tvm_version="0.27.0", script=script)
    timeout = Failure(FailureKind.TIMEOUT, Phase.RUN, "killed after 10 s", 10.0)
    bare = Program(make_workload(2), NO_TARGET, Trace(b"[]", None, b"[]"))
    return [
        make_measurement(0, (0.5, 0.25), workload=workload, session=session, measured_at=NOW),
        make_measurement(1, (0.125,), workload=workload, origin=Origin.RANDOM),
        make_measurement(1, (0.125,), workload=workload, origin=Origin.RANDOM, occurrence=1),
        make_measurement(
            2,
            (0.375,),
            workload=workload,
            args_info=b'[["TENSOR","float32",[128,128]]]',
            origin=Origin.MUTATED,
            donor=make_program(1, workload=workload).digest,
        ),
        make_measurement(3, (0.0625,), workload=workload, target=make_target(1, text="llvm")),
        make_measurement(4, None, workload=workload, session=session, failure=timeout),
        make_measurement(5, (), workload=workload, status=Status.FAILED),
        make_measurement(6, (1e10, 1e10), workload=workload, status=Status.FAILED),
        make_measurement(7, (5e-324, -0.0), workload=workload),
        Measurement(bare, (0.75,)),
        make_measurement(8, (0.03125,), workload=workload),
    ]


def logged():
    """Return records as in logs of other tools: since revision 0002."""
    workload = Workload("ansor-key", b'["matmul", 64, 64, 64]', "matmul")
    sketch = b'{"layout_rewrite":0,"steps":[["SP",2,0,null,[null,null],1]]}'
    programs = [
        Program(workload, make_target(), Trace(sketch, None, bytes([64, 4, n]))) for n in (1, 200)
    ]
    context = identity.canonical_json({"log": "ansor", "version": "v0.6"})
    timeout = Failure(FailureKind.TIMEOUT, Phase.BUILD, "BUILD_TIMEOUT")
    fields = {"measured_at": NOW, "all_cost": 1.5, "context": context}
    return [
        Measurement(programs[0], (0.25,), **fields, extra=b'{"timestamp":1767225600.1234567}'),
        Measurement(programs[0], (1e10,), Status.FAILED, **fields, failure=timeout),
        Measurement(programs[1], (0.0,), Status.UNMEASURED, **fields),
    ]


#: The key of another database, whose records were merged.
THEIRS = "f" * 32


def shared():
    """Return records that are not retracted one by one: since revision 0004.

    The first one is retracted with its session, the second one by the database it comes from.
    """
    throttled = make_measurement(20, (1e-12,), workload=1, session=make_session(7))
    return [throttled, make_measurement(21, (1e-12,), workload=1)]


def launched():
    """Return records of GPU kernels with counters of a profiler, since revision 0005."""
    workload, target = kernel_workload("matmul", [64, 64]), gpu_target("cuda", "Tesla K40c")
    counters = CounterSet("ncu", "2026.1", "7.5", (("sm__warps_active.avg", "%"), ("launch", "")))
    parameters = [split_parameters({"block_size_x": 32 * n, "mode": "a"}) for n in (1, 2)]
    programs = [Program(workload, target, one) for one in parameters]
    # The first launch has a value that was not measured, the second one an unknown block.
    profiled = Launch(
        *("matmul<32>", 32, (32, 1, 1), (64, 1, 1), 0, 32, 1024, 0, 0.25),
        counter_set=counters,
        values=(math.nan, 12.5),
    )
    again = Launch("reduce", 64, number=1)
    fields = {"measured_at": NOW, "context": b'{"log":"ktt"}'}
    return [
        Measurement(programs[0], (0.25,), **fields, launches=(profiled, again)),
        Measurement(programs[1], (0.5, 0.75), **fields, launches=(Launch("matmul<64>", 64),)),
    ]


def cut_short():
    """Return the record of a program that a tuning run cut short: since revision 0008."""
    fields = {"workload": 1, "session": make_session(8), "measured_at": NOW}
    return make_measurement(22, (1e-13, 2e-13), status=Status.CUT_SHORT, **fields)


def share(store):
    """Add retractions, a foreign source and a watermark, as an exchange of databases does."""
    throttled, theirs = shared()
    store.batches.add([throttled], OWN)
    store.trust.retract_session(2, "throttled")
    store.trust.retract_source(2, "nobody knows this machine")
    store.batches.add([theirs], Source("theirs", SourceKind.FILE, Trust.FOREIGN))
    digest = identity.digest("source", THEIRS.encode(), b"theirs")
    watermark = {"direction": "pull", "peer": THEIRS, "selection": "{}", "measurement_id": 1}
    watermark |= {"measurement_digest": theirs.digest, "failure_id": 0, "launch_id": 0}
    watermark |= {"retractions": 2, "exchanged_at": NOW}
    with store._db.transaction() as connection:
        update = schema.source.update().where(schema.source.c.name == "theirs")
        connection.execute(update.values(store=THEIRS, digest=digest))
        # The other database may retract the first one, but not the second one.
        rows = [(theirs.digest, "their clock was wrong"), (measurements()[0].digest, "a lie")]
        insert_retractions(
            connection, [Retraction(digest, THEIRS, "measurement", why) for digest, why in rows]
        )
        connection.execute(schema.watermark.insert().values(watermark))


def attribute(store):
    """Add foreign statements about records and workloads: since revision 0006."""
    failed = measurements()[5]
    failure = Failure(FailureKind.WRONG_RESULT, Phase.RUN, "a lie")
    alias = {"scheme": "script", "key": "ab" * 16, "workload_id": 2}
    with store._db.transaction() as connection:
        source = schema.source
        theirs = connection.execute(source.select().where(source.c.name == "theirs")).one()
        row = failure_row(failed.program.digest, failed.digest, failure, theirs.id)
        statements.insert["failure"](connection, **row)
        connection.execute(schema.workload_alias.insert().values(source_id=theirs.id, **alias))
        feature = {"program_id": 1, "feature_set_id": 1, "source_id": theirs.id}
        connection.execute(schema.foreign_feature.insert().values(feature))
        wrong = Retraction(theirs.digest, THEIRS, "aliases", "they were wrong")
        insert_retractions(connection, [wrong])


def fill(path):
    """Put at least one row into every table."""
    with Store(path) as store:
        rows = measurements()
        ids, _ = store.batches.add(rows, OWN)
        store.batches.add([make_measurement(9, (1e-9,), workload=1)], FOREIGN)
        store.trust.retract(ids[-1:], "the clock was wrong")
        later = Failure(FailureKind.CRASH, Phase.BUILD, "Segmentation fault (é)")
        store.batches.add_failures([(rows[6], later)])
        store.quarantine.add([Quarantined("old.json", 3, "not JSON", b"{\xff\0")], OWN)
        structural = Alias("tvm:0.27:structural", "17")
        store.workloads.add(make_workload(1), [structural, Alias("script", "ab" * 16)])
        store.workloads.add(make_workload(3), [structural])
        store.batches.add(logged(), OWN)
        share(store)
        store.batches.add(launched(), OWN)
        store.batches.add([cut_short()], OWN)
        data = compress(identity.pack_floats([1.0] * 4))
        features = {"feature_set_id": 1, "n_rows": 2, "n_columns": 2, "data": data}
        parameters = identity.canonical_json({"max_depth": 6})
        model = {"digest": identity.digest("model", parameters), "parameters": parameters.decode()}
        model |= {"training_digest": rows[0].digest, "created_at": NOW, "body": b"{}"}
        factor = {"target_id": 1, "subject": "session", "subject_id": 1, "machine": 0}
        factor |= {"factor": 1.25, "spread": 0.01, "programs": 3, "estimated_at": NOW}
        with store._db.transaction() as connection:

            def add(table, **values):
                connection.execute(table.insert().values(values))

            add(schema.feature_set, id=1, name="x", version=1, columns='["a","b"]')
            add(schema.feature, program_id=1, **features)
            add(schema.model, kind="xgboost", card="{}", **model)
            add(schema.prediction, model_id=1, program_id=1, score=0.5, predicted_at=NOW)
            add(schema.account, store=THEIRS, role="alice", registered_at=NOW)
            add(schema.session_factor, **factor)
        attribute(store)


def shrink(path):
    """Rewrite the file with small pages: empty tables of 8 KB would be most of it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA page_size=1024")
        connection.execute("VACUUM")
        connection.execute("PRAGMA journal_mode=WAL")


def main():
    path = HERE / "frozen" / f"{schema.HEAD}.db"
    if path.exists():
        sys.exit(f"{path} exists; what is released stays as it is")
    path.parent.mkdir(exist_ok=True)
    # The first frozen databases were made when the number before named a temporary file.
    numbers = itertools.count(2)
    with (
        mock.patch("uuid.uuid4", lambda: uuid.UUID(int=next(numbers))),
        mock.patch("time.time_ns", lambda: NOW * 1000),
    ):
        fill(path)
    shrink(path)


if __name__ == "__main__":
    main()
