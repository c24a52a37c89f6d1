"""Processes that merge into one database. Run as a script; tests read what it prints.

python union_worker.py merge URL SEED PEER…    merge all in some order; print how many were new
python union_worker.py read URL                query until stdin closes; fail at incomplete rows
"""

import random
import sys
from contextlib import closing

from kills import looks
from sqlalchemy import func, select

from tunedb import limits
from tunedb.exchange.merge import merge
from tunedb.exchange.peers import open_peer
from tunedb.storage import engine, schema
from tunedb.storage.store import Store


def merge_all(url, seed, *peers):
    """Merge databases and bundles in an order of this process alone."""
    order = list(peers)
    random.Random(int(seed)).shuffle(order)
    with Store(url) as store:
        new = 0
        for one in order:
            with closing(open_peer(one)) as peer:
                report = merge(store, peer)
            assert not report.reasons, report
            new += report.new
        print(new, flush=True)


def read(url):
    """Query repeatedly: each record has its launch, and each failed one its failure."""
    m, f, one = schema.measurement.c, schema.failure.c, schema.launch.c
    # One statement, so one snapshot.
    ids = func.count(m.id), func.count(f.id), func.count(one.id)
    look = select(*ids, func.count(m.id) - func.count(m.mean)).select_from(
        schema.measurement.outerjoin(schema.failure, f.measurement_id == m.id).outerjoin(
            schema.launch, one.measurement_id == m.id
        )
    )
    last = 0
    with Store(url, read_only=True) as store:
        for _ in looks():
            records, failures, launches, failed = store._db.select(look)[0]
            assert failed == failures, (failed, failures)
            assert records == launches, (records, launches)
            assert records >= last
            last = records


if __name__ == "__main__":
    # On a busy machine many processes may wait long for one another.
    engine.BUSY_TIMEOUT_S = limits.LOCK_S = limits.STATEMENT_S = 600
    {"merge": merge_all, "read": read}[sys.argv[1]](*sys.argv[2:])
