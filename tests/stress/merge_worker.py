"""Merges that are killed. Run as a script; tests read what it prints.

python merge_worker.py URL OTHER KILLS SEED

merges the database OTHER into URL, a few records in each transaction, KILLS times in processes
that are killed at random moments and then once to its end. With an odd SEED each goes on from the
watermark of the one before. Prints how many records there were after each, and the watermark.
"""

import sys
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kills import kill_and_end

from tunedb import limits
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.storage.store import Store

MARK = ("pull", "b" * 32, "everything")


def merge_all(url, other, *, resume, began=lambda: None):
    """Merge in this process."""
    with Store(url) as store, closing(DatabasePeer(other)) as peer:
        began()
        if resume:
            since, until = store.exchange.watermark(*MARK), peer.position()
            report = merge(store, peer, since=since, until=until, watermark=MARK)
        else:
            report = merge(store, peer)
        assert report.rejected == 0, report.reasons


def main(url, other, kills, seed):
    limits.BATCH_ROWS = 16
    limits.IMPORT_BYTES = 2_000
    resume = int(seed) % 2 == 1
    # The second merge loads no module; half of its time leaves something to add after a kill.
    merge_all(":memory:", other, resume=False)
    started = time.perf_counter()
    merge_all(":memory:", other, resume=False)
    longest = (time.perf_counter() - started) / 2

    def work(began):
        merge_all(url, other, resume=resume, began=began)

    def tell():
        with Store(url) as store:
            mark = store.exchange.watermark(*MARK)
            reached = 0 if mark is None else mark.measurement_id
            # A record and its launch are one transaction.
            assert store.counts().launches == store.records.count()
            print(store.records.count(), reached, flush=True)

    kill_and_end(work, tell, kills=kills, seed=seed, longest=longest)


if __name__ == "__main__":
    main(*sys.argv[1:])
