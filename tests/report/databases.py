"""A database with everything that a page shows."""

from dataclasses import replace

from builders import FOREIGN, add, make_measurement, make_workload

from tunedb.identity import canonical_json
from tunedb.records import Failure, FailureKind, Origin, Phase, Session, Status
from tunedb.results import SessionFactor
from tunedb.storage.network_runs import NetworkRun, OperatorTime
from tunedb.storage.store import Store
from tunedb.system.roofline import Roofline

START = 1_700_000_000_000_000
MINUTE = 60_000_000


def run_of(network):
    """Return the session that ends a run of a network."""
    run = {"key": "k", "trials": 8, "network": network.as_json()}
    fingerprint = {"cpu": "made up", "cores": 2, "threads": 2, "run": run}
    return Session("network", START, canonical_json(fingerprint))


def network(name="net", workload=0):
    digest = make_workload(workload).digest.hex()
    return NetworkRun(
        name=name,
        target='{"kind":"llvm","mcpu":"skylake"}',
        threads=2,
        untuned=2e-2,
        latency=5e-3,
        deviation=1e-6,
        tolerance=1e-4,
        operators=(
            OperatorTime("matmul", digest, 2, 1.6e-2, 4e-3, 1e7, 1e5),
            OperatorTime("reshape", None, 1, 1e-3, 1e-3),
        ),
        roofline=Roofline(1e11, ((1e6, 1e11), (1e8, 1e10))),
    )


def fill(path):
    """Write a network, three tasks, failures and a foreign record."""
    session = run_of(network())
    donor = make_measurement(0, (9e-3,)).program.digest
    timeout = Failure(FailureKind.TIMEOUT, Phase.RUN, "timed out after 30 s", 30.0)
    trials = [
        make_measurement(0, (9e-3, 9.2e-3), origin=Origin.RANDOM),
        make_measurement(1, None, failure=timeout),
        make_measurement(2, (4e-3, 4.4e-3), origin=Origin.MUTATED, donor=donor),
        make_measurement(3, (5e-3, 5.1e-3), origin=Origin.MUTATED, donor=donor),
        make_measurement(4, (2e-3, 2.1e-3), origin=Origin.MUTATED, donor=donor),
        make_measurement(5, (8e-3,), status=Status.CUT_SHORT),
    ]
    at = [replace(one, session=session, measured_at=START + n * MINUTE, occurrence=n)
          for n, one in enumerate(trials)]  # fmt: skip
    others = [make_measurement(n, (1e-3 * (n + 1),), workload=1, target=1) for n in range(40)]
    with Store(path) as store:
        add(store, *at)
        add(store, *others)
        add(store, make_measurement(6, None, workload=2))
        add(store, make_measurement(7, (1e-9,)), source=FOREIGN)
        store.runs.set_factors(1, [SessionFactor("session", 1, 0, 1.25, 0.01, 40)])
