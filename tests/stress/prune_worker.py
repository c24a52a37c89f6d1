"""Prunings that are killed. Run as a script; tests read what it prints.

python prune_worker.py URL KILLS SEED

prunes a database, one small transaction after another, KILLS times in processes that are killed at
random moments and then once to its end. Prints the number of records after each of them.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kills import kill_and_end

from tunedb import limits
from tunedb.maintenance.prune import PruneRules, plan, prune
from tunedb.storage.exchange_types import Selection
from tunedb.storage.store import Store

WANTED = PruneRules(Selection(best=3, rest=1.0), retracted=True, features="")


def main(url, kills, seed):
    limits.BATCH_ROWS = 4

    def work(begin):
        with Store(url) as store:
            chosen = plan(store, WANTED)
            begin()
            prune(store, chosen, on_progress=lambda _: time.sleep(0.001))

    def tell():
        with Store(url) as store:
            print(store.records.count(), flush=True)

    kill_and_end(work, tell, kills=kills, seed=seed, longest=0.08)


if __name__ == "__main__":
    main(*sys.argv[1:])
