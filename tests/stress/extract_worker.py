"""Extractions that are killed. Run as a script; tests read what it prints.

python extract_worker.py URL KILLS SEED

computes the features of a database, one small transaction after another, KILLS times in processes
that are killed at random moments and then once to its end. Prints the number of programs that had
rows after each of them.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "features"))

from fake_sets import Steps
from kills import kill_and_end

from tunedb import limits
from tunedb.extraction.extract import extract
from tunedb.storage.store import Store

#: Every seventh program has no rows.
FAILS = frozenset(range(7, 1000, 7))


class Slow(Steps):
    """A slow feature set, so that a kill may come anywhere."""

    def rows(self, programs):
        time.sleep(0.002)
        return super().rows(programs)


SET = Slow(fails=FAILS)


def main(url, kills, seed):
    limits.FEATURE_PROGRAMS = 3

    def work(begin):
        with Store(url) as store:
            begin()
            extract(store, SET)

    def tell():
        with Store(url) as store:
            print(sum(s.programs for s in store.features.sets()), flush=True)

    kill_and_end(work, tell, kills=kills, seed=seed, longest=0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
