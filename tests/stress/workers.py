"""Processes that share a database. Run as a script; tests read what it prints.

python workers.py create URL PROCESSES ROUND    open at the same moment, add one record each
python workers.py share URL PROCESSES COUNT SIZE    add batches at the same moment, and query
python workers.py write URL FIRST COUNT SIZE    add batches; print each number when it is in
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from builders import OWN, make_batch, make_measurement
from sqlalchemy import func, select

from tunedb.errors import StorageError
from tunedb.storage import schema
from tunedb.storage.store import Store


def create(url, processes, round_):
    """Fork processes that open the database at the same moment; print each one's store key."""
    import alembic.autogenerate  # noqa: F401  not while others wait

    def work(number):
        with Store(url) as store:
            store.records.add([make_measurement(number, measured_at=int(round_))], OWN)
            os.write(1, f"{store.key}\n".encode())

    children, begin = forked(int(processes), work)
    begin()
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


def forked(count, work):
    """Fork processes that wait; return their ids, and a function that lets each call ``work``."""
    gate, open_gate = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            os.close(open_gate)
            os.read(gate, 1)  # returns when the parent closes its end
            work(number)
            os._exit(0)
        children.append(child)
    return children, lambda: os.close(open_gate)


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


def share(url, processes, count, size):
    """Query while processes add batches: no batch is partial, and no record gets lost."""
    count, size, last = int(count), int(size), 0
    children, begin = forked(
        int(processes), lambda number: write(url, 1 + number * count, count, size)
    )

    def look():
        nonlocal last
        assert set(sizes_of_batches(store).values()) <= {size}
        means = [record.mean for record in store.records.top_k([1], None, 10)]
        assert means == sorted(means)
        total = store.records.count()
        assert total >= last
        last = total

    with Store(url, read_only=True) as store:
        look()
        begin()
        while children:
            look()
            for child in children[:]:
                ended, status = os.waitpid(child, os.WNOHANG)
                assert status == 0
                if ended:
                    children.remove(child)
        look()


if __name__ == "__main__":
    {"create": create, "share": share, "write": write}[sys.argv[1]](*sys.argv[2:])
