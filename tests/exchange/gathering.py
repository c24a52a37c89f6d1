"""Rows that a peer gives, and the measurements that they make."""

from tunedb import identity
from tunedb.records import Measurement, Origin, Program, Session, Status, Target, Trace, Workload
from tunedb.storage.exchange_types import COLUMNS, EVERYTHING

#: Column of a row → table of the row to which it refers.
REFERENCES = {
    "workload_alias": {"workload": "workload"},
    "measurement": {name: name for name in COLUMNS["measurement"] if name in COLUMNS},
    "failure": {"measurement": "measurement"},
    "launch": {"measurement": "measurement", "counter_set": "counter_set"},
    "feature": {"measurement": "measurement", "feature_set": "feature_set"},
}


def gather(peer, selection=EVERYTHING, **positions):
    """Return table → rows as dictionaries; assert that each follows the rows it refers to."""
    found = {table: [] for table in COLUMNS}
    given = {table: set() for table in COLUMNS}
    for chunk in peer.chunks(selection, **positions):
        assert chunk.rows
        for row in chunk.rows:
            assert isinstance(row, tuple)
            fields = dict(zip(COLUMNS[chunk.table], row, strict=True))
            for name, table in REFERENCES.get(chunk.table, {}).items():
                assert fields[name] is None or fields[name] in given[table], (chunk.table, fields)
            if "id" in fields:
                assert fields["id"] not in given[chunk.table], "a row was given twice"
                given[chunk.table].add(fields["id"])
            found[chunk.table].append(fields)
    return found


def measurements(found):
    """Return the measurements of gathered rows; their digests are checked."""
    rows = {table: {row["id"]: row for row in found[table] if "id" in row} for table in found}
    made = []
    for row in found["measurement"]:
        parts = {
            table: None if row[table] is None else rows[table][row[table]]
            for table in REFERENCES["measurement"]
        }
        w, t, s, tail = (parts[table] for table in ("workload", "target", "session", "tail"))
        args, context = (
            parts[table] and parts[table]["body"].encode() for table in ("args_info", "context")
        )
        program = Program(
            Workload(w["format"], w["body"], w["name"], w["tvm_version"]),
            Target(t["kind"], t["config"].encode(), t["text"]),
            Trace(parts["sketch"]["body"], tail and tail["body"], row["decisions"]),
        )
        times = row["run_secs"]
        measurement = Measurement(
            program,
            None if times is None else identity.unpack_floats(times),
            Status(row["status"]),
            row["measured_at"],
            row["occurrence"],
            s and Session(s["key"], s["started_at"], s["fingerprint"].encode()),
            args,
            Origin(row["origin"] or "unknown"),
            row["donor"],
            row["all_cost"],
            context,
            None if row["extra"] is None else row["extra"].encode(),
        )
        assert row["digest"] in (None, measurement.digest)
        assert row["program_digest"] in (None, program.digest)
        made.append(measurement)
    return made


def digests(found):
    """Return the digests of the measurements of gathered rows."""
    return {measurement.digest for measurement in measurements(found)}
