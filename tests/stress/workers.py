"""Processes that share a database. Run as a script; tests read what it prints.

python workers.py create URL PROCESSES ROUND    open at the same moment, add one record each
python workers.py write URL FIRST COUNT SIZE    add batches; print each number when it is in
python workers.py read URL SIZE                 query until stdin closes; count partial batches
"""

import os
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import alembic.autogenerate  # noqa: F401  not while others wait
from builders import OWN, make_batch, make_measurement
from kills import stdin_closed
from sqlalchemy import func, select

from tunedb.errors import StorageError
from tunedb.storage import schema
from tunedb.storage.store import Store


def create(url, processes, round_):
    """Fork processes that open the database at the same moment; print each one's store key."""
    gate, open_gate = os.pipe()
    children = []
    for number in range(int(processes)):
        child = os.fork()
        if child == 0:
            os.close(open_gate)
            os.read(gate, 1)  # returns when the parent closes its end
            with Store(url) as store:
                store.records.add([make_measurement(number, measured_at=int(round_))], OWN)
                os.write(1, f"{store.key}\n".encode())
            os._exit(0)
        children.append(child)
    os.close(open_gate)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    sys.exit(len(failed))


def write(url, first, count, size):
    """Add batches; a batch whose connection was cut is added again."""
    with Store(url) as store:
        for marker in range(int(first), int(first) + int(count)):
            batch = make_batch(marker, int(size))
            while True:
                try:
                    store.batches.add(batch, OWN)
                    break
                except StorageError as error:
                    if "postgresql" not in url:
                        raise
                    print(f"lost {error}", file=sys.stderr, flush=True)
            print(marker, flush=True)


def sizes_of_batches(store):
    """Return how many records of each batch there are."""
    marker = schema.measurement.c.measured_at
    return dict(map(tuple, store._db.select(select(marker, func.count()).group_by(marker))))


def read(url, size):
    """Query repeatedly; print the number of queries and of partial batches at the end."""
    stop = stdin_closed()
    print("ready", flush=True)
    looks, parts, last = 0, Counter(), 0
    with Store(url, read_only=True) as store:
        while not stop.is_set():
            looks += 1
            for marker, number in sizes_of_batches(store).items():
                if number != int(size):
                    parts[marker, number] += 1
            means = [record.mean for record in store.records.top_k([1], None, 10)]
            assert means == sorted(means)
            total = store.records.count()
            assert total >= last
            last = total
    print(f"looks={looks} parts={len(parts)}", flush=True)


if __name__ == "__main__":
    {"create": create, "write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
