"""Imports that are killed. Run as a script; tests read what it prints.

python import_worker.py URL FOLDER KILLS SEED PROCESSES

imports the logs below FOLDER, one small transaction after another, KILLS times in processes that
are killed at random moments and then once to its end. Each of them shares the files among PROCESSES
processes, if there are several. Prints the number of records that were stored after each of them.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kills import kill_and_end

from tunedb import limits
from tunedb.formats.find import find_logs
from tunedb.formats.import_processes import ImportJob, import_in_processes
from tunedb.formats.importer import import_log
from tunedb.storage.store import Store

# At the top, because processes that share the files import this module.
limits.IMPORT_ROWS = 3
limits.PROGRESS_LINES = 2


def import_all(store, folder):
    """Import all logs of a folder in this process."""
    for file in find_logs([folder]):
        report = import_log(store, file, source=Path(file.name).parent.name)
        assert report.refused is None, report
        assert report.total.read == 24, report


def share_all(url, folder, processes):
    """Import all logs of a folder in several processes."""
    jobs = [ImportJob(file, Path(file.name).parent.name) for file in find_logs([folder])]
    reports = {}
    import_in_processes(
        url,
        jobs,
        processes,
        on_begin=lambda number: None,
        on_stored=lambda stored: reports.update({stored.number: stored.report}),
        is_stopped=lambda: False,
    )
    assert [reports[number].total.read for number in range(len(jobs))] == [24] * len(jobs), reports


def duration(folder):
    """Return how many seconds an import takes when all modules are loaded."""
    for _ in range(2):
        with Store(":memory:") as store:
            started = time.perf_counter()
            import_all(store, folder)
    return time.perf_counter() - started


def main(url, folder, kills, seed, processes):
    shared = int(processes) > 1

    def work(begin):
        with Store(url) as store:
            begin()
            if not shared:
                import_all(store, folder)
        if shared:
            share_all(url, folder, int(processes))

    def tell():
        with Store(url) as store:
            print(store.counts().measurements, flush=True)

    # Half of its time leaves something to add after each kill. Processes begin after a second.
    longest = duration(folder) / 2 + (1.5 if shared else 0)
    kill_and_end(work, tell, kills=kills, seed=seed, longest=longest)


if __name__ == "__main__":
    main(*sys.argv[1:])
