"""Prunings that are killed. Run as a script; tests read what it prints.

python prune_worker.py URL KILLS SEED

prunes a database, one small transaction after another, KILLS times in processes that are killed at
random moments and then once to its end. Prints the number of records after each of them.
"""

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kills import in_child, killed_or_done

from tunedb import limits
from tunedb.sharing.selection import Selection
from tunedb.space.pruning import Wanted, plan, prune
from tunedb.store import Store

WANTED = Wanted(Selection(best=3, rest=1.0), retracted=True, features="")


def run(url, moment=None):
    """Prune in a process of its own, killed `moment` seconds after it began; return its end."""

    def work(begin):
        with Store(url) as store:
            chosen = plan(store, WANTED)
            begin()
            prune(store, chosen, on_progress=lambda _: time.sleep(0.001))

    return in_child(work, moment)


def main(url, kills, seed):
    limits.BATCH_ROWS = 4
    rng = random.Random(int(seed))
    for _ in range(int(kills)):
        status = run(url, rng.uniform(0, 0.08))
        assert killed_or_done(status), status
        with Store(url) as store:
            print(store.query.size(), flush=True)
    assert run(url) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
