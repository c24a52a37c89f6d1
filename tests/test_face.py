"""The public face of a store: an example of each method, and one line for each object.

>>> store = Store(":memory:")
>>> store
Store(':memory:')
>>> store.location, store.read_only, store.url.get_backend_name(), len(store.key)
(':memory:', False, 'sqlite', 32)

Records: what was measured.

>>> store.records.add([measurement, failed], OWN)
AddReport(new=2, known=0)
>>> best = store.records.best("matmul")
>>> best
Record(1, 'matmul_0' for llvm, 0.001 s, from 'own')
>>> store.records.best("matmul", "llvm") == store.records.best(1) == best
True
>>> store.records.best("conv2d")
Traceback (most recent call last):
    ...
tunedb.errors.NotFoundError: no workload 'conv2d'; there are: 1 (matmul_0); see: tunedb workloads
>>> [record.id for record in store.records.top_k("matmul", k=3)]
[1]
>>> store.records.get(1) == best
True
>>> store.records.find(best.measurement.digest.hex()[:8])
[1]
>>> [record.measurement.status.name for record in store.records.iterate()]
['OK', 'FAILED']
>>> store.records.history([1])
[(1, 0.001, 0.001)]
>>> store.records.count()
2
>>> store.records.failures()
{'timeout': 1}
>>> store.records.unaccepted(1)
[]

Workloads and targets: what was computed, and for which device.

>>> store.workloads.add(make_workload(1))
2
>>> store.workloads.find("matmul")
[Workload(1, 'matmul_0', 2 records, best 0.001 s), Workload(2, 'matmul_1', 0 records)]
>>> first = store.workloads.find("matmul_0")[0]
>>> first.records, first.failed, first.targets, first.best, store.workloads.find(family="conv2d")
(2, 1, 1, 0.001, [])
>>> store.records.best(first) == store.records.best(store.workloads.find("matmul")) == best
True
>>> store.workloads.get(1).name
'matmul_0'
>>> store.workloads.id_of(make_workload(1).digest)
2
>>> store.workloads.equivalent(1)
[1]
>>> store.workloads.neighbours(1, make_target())
[]
>>> store.targets.add(make_target(1))
2
>>> one, two = store.targets.find("llvm")
>>> one
Target(1, 'llvm skylake 1 cores', 2 records, 1 workloads)
>>> store.targets.find('{"num-cores": 2}') == [two], store.records.best("matmul", one) == best
(True, True)
>>> store.targets.get(2).kind, store.targets.id_of(make_target(1).digest)
('llvm', 2)
>>> store.targets.compatible(make_target(1))
[1, 2]

Sessions: runs on one machine.

>>> store.sessions.add(make_session(1))
>>> store.sessions.find("session-1"), store.sessions.get(2).key
([2], 'session-1')

Features and models: what is computed of records.

>>> store.features.add(Steps(), [(1, np.ones((1, 2)))])
1
>>> [rows.shape for rows in store.features.rows(Steps(), [1])]
[(1, 2)]
>>> store.features.coverage(Steps())
FeatureCoverage(programs=2, able=2, known=1)
>>> [(stored.name, stored.programs, stored.rows) for stored in store.features.sets()]
[('fake.steps', 1, 1)]
>>> store.models.add(NewModel(b"m" * 16, "ranker", b"{}", b"t" * 16, {}, b"trees"))
1
>>> store.models.add_predictions(1, {1: 0.5})
1
>>> [model.id for model in store.models.all(kind="ranker")]
[1]
>>> store.models.find(b"m" * 16).size, store.models.body(1)
(5, b'trees')

Launches of GPU kernels, and lines that nobody understood.

>>> store.launches.add([(measurement, Launch("main_kernel", 256))])
1
>>> store.launches.for_record(1)
[Launch(kernel='main_kernel', threads=256, number=0, values=())]
>>> [row.launch.threads for row in store.launches.iterate()]
[256]
>>> store.quarantine.add([Quarantined("log.json", 7, "not JSON", b"{")], OWN)
1
>>> store.quarantine.ids("log.json")
[1]
>>> store.quarantine.rows()[0].item
Quarantined(file='log.json', line=7, reason='not JSON', data=<1 bytes>)
>>> store.quarantine.release([1])

Sources and trust: where records came from, and which are served.

>>> store.sources.get(1)
Source(name='own', kind=API, trust=OWN)
>>> [(id_, source.name) for id_, digest, source in store.sources.numbered()]
[(1, 'own')]
>>> [(row.name, row.records, row.served) for row in store.sources.summaries()]
[('own', 2, 1)]
>>> store.trust.set(1, Trust.FOREIGN), store.records.best("matmul")
(1, None)
>>> store.trust.set(1, Trust.OWN)
1
>>> store.trust.retract([1], "the machine was busy"), store.records.best("matmul")
(1, None)
>>> store.trust.retract_session(1, "a debug build"), store.trust.retract_source(1, "a wrong clock")
(0, 0)
>>> store.trust.retract_aliases(1, "wrong names")

The whole.

>>> store.counts().measurements, store.counts().retracted
(2, 2)
>>> store.table("records", "matmul")
<table records: 2 rows, 21 columns>
>>> store.meta()["store"] == store.key
True
>>> store.require_approved()
>>> store.set_retry_timeout(30)
>>> store.close()
"""

import dataclasses
import doctest
import re

import numpy as np
from builders import OWN, make_measurement, make_session, make_target, make_workload
from fake_sets import Steps

import tunedb
from tunedb.launches import Launch
from tunedb.records import Failure, FailureKind, Phase, Quarantined, Trust
from tunedb.results import NewModel
from tunedb.storage.store import Store

PARTS = (
    *("records", "workloads", "targets", "sources", "trust", "sessions"),
    *("features", "models", "launches", "quarantine"),
)

#: Maximum number of public names of a store: its own and those of its parts.
MOST = 60

FAILURE = Failure(FailureKind.TIMEOUT, Phase.RUN, "too slow", 1.0)

#: Names that the examples use.
WORDS = {
    **{"np": np, "OWN": OWN, "Steps": Steps, "Store": Store, "Trust": Trust},
    **{"Launch": Launch, "NewModel": NewModel, "Quarantined": Quarantined},
    **{"make_session": make_session, "make_target": make_target, "make_workload": make_workload},
    "measurement": make_measurement(0, session=make_session()),
    "failed": make_measurement(1, None, failure=FAILURE),
}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_examples_of_this_module_give_the_shown_output():
    example = doctest.DocTestParser().get_doctest(__doc__, WORDS, "face", __file__, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    told = []
    runner.run(example, out=told.append)
    assert runner.failures == 0, "".join(told)


def test_examples_in_docstrings_of_the_store_give_the_shown_output():
    """All examples share one store, which starts with two records of one workload."""
    runner, told = doctest.DocTestRunner(), []
    find = doctest.DocTestFinder().find
    with Store(":memory:") as store:
        store.records.add([WORDS["measurement"], WORDS["failed"]], OWN)
        words = {"store": store, "tunedb": tunedb}
        things = [tunedb.open, Store, *(type(getattr(store, part)) for part in PARTS)]
        found = (example for thing in things for example in find(thing, globs=words))
        examples = [example for example in found if example.examples]
        for example in examples:
            runner.run(example, out=told.append)
    assert len(examples) >= 10
    assert runner.failures == 0, "".join(told)


def test_every_public_name_of_the_store_has_an_example():
    with Store(":memory:") as store:
        names = {f"{part}.{name}" for part in PARTS for name in public(getattr(store, part))}
        internal = {
            name
            for name, part in vars(store).items()
            if type(part).__module__.startswith("tunedb.") and name not in PARTS
        }
        own = public(store) - set(PARTS) - internal
    assert len(names) + len(own) <= MOST
    for name in names | own:
        assert re.search(rf"\bstore\.{re.escape(name)}\b", __doc__), name


def objects(thing):
    """Yield a dataclass and the dataclasses in its fields."""
    if dataclasses.is_dataclass(thing):
        yield thing
        for one in dataclasses.fields(thing):
            yield from objects(getattr(thing, one.name))


def test_repr_of_each_object_and_part_is_one_short_line():
    """It is so even if its texts and bytes are long."""
    long = "x\n" * 10_000
    extra = b'{"e":"' + b"y" * 9_000 + b'"}'
    measurement = make_measurement(session=make_session(), context=b'{"c":1}', extra=extra)
    with Store(":memory:") as store:
        store.records.add([measurement], OWN)
        parts = [getattr(store, part) for part in PARTS]
        found = [
            *(store.records.get(1), store.answers.get(1), store.programs.get([1])[0]),
            *(store.workloads.find()[0], store.targets.find()[0]),
            *(store.sources.summaries()[0], store.counts(), store.runs.sessions()[1][0]),
            Quarantined(long, 1, long, b"z" * 10_000),
            NewModel(b"m" * 16, "ranker", b"{}", b"t" * 16, {"key": long}, b"z" * 10_000),
            Failure(FailureKind.CRASH, Phase.RUN, long, 1.0),
        ]
    for one in (*parts, *(inner for outer in found for inner in objects(outer))):
        assert len(repr(one)) <= 100
        assert "\n" not in repr(one)
