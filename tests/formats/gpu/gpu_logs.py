"""Writes and reads files of GPU tuners and profilers."""

import json

import orjson

from tunedb.formats.base import LogFile, Remark
from tunedb.formats.reading import read_log
from tunedb.records import Measurement, Quarantined


def write(folder, content, name, **words):
    """Write text, bytes or a document; return the log."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if not isinstance(content, bytes):
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        content = text.encode()
    path.write_bytes(content)
    return LogFile(path, name, **words)


def read(path, **words):
    """Return the items of a file: records, remarks and quarantined rows."""
    return [found.item for found in read_log(LogFile(path, path.name, **words))]


def read_kinds(path, **words):
    """Return the records, the remarks and the quarantined rows of a file."""
    items = read(path, **words)
    kinds = (Measurement, Remark, Quarantined)
    return tuple([item for item in items if isinstance(item, kind)] for kind in kinds)


def counters_of(record):
    """Return the counters of the one launch of a record by name, None for none."""
    (launch,) = record.launches
    if launch.counter_set is None:
        return None
    names = [name for name, _ in launch.counter_set.counters]
    return dict(zip(names, launch.values, strict=True))


def problem(record):
    """Return the problem in the workload of a record."""
    return orjson.loads(record.program.workload.body)["problem"]
