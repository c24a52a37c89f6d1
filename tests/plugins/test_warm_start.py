"""Warm start: programs of similar workloads are adapted to a module of TVM."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
import te_programs
import tvm
from products import assert_multiplies
from tvm import IRModule, te, topi
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.testing import te_workload

from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.database.database import handle_of
from tunedb.plugins.metaschedule.search import schedule_queries
from tunedb.plugins.metaschedule.search.schedule_queries import DraftReplayer
from tunedb.plugins.metaschedule.search.warm_start import Relatives
from tunedb.records import Measurement, Program, Source, Trace
from tunedb.search.prior import tiles_of
from tunedb.search.tilings import tilings

_matmul = te_workload.matmul


def _conv_relu(size, channels, filters):
    data, weight, conv = te_workload.conv2d_nhwc(1, size, size, channels, filters, 3, 1, 1)
    return data, weight, topi.nn.relu(conv)


def _softmax(rows, columns):
    data = te.placeholder((rows, columns), name="A")
    return data, topi.nn.softmax(data, axis=1)


def _module(make, *shape, name="main"):
    return IRModule({name: te.create_prim_func(list(make(*shape)))})


def _tune(database, mod, kind, count=8, seed=1):
    """Store random programs of a module, each a millisecond slower than the one before."""
    context = te_programs.context(mod, kind, seed)
    context.pre_tuning(count, count, context.generate_design_space())
    workload = database.commit_workload(mod)
    for number, candidate in enumerate(context.generate_measure_candidates() or []):
        parts = (candidate.sch.trace, workload, [1e-3 * (number + 1)], context.target)
        record = ms.database.TuningRecord(*parts, candidate.args_info)
        database.commit_tuning_record(record)
    context.post_tuning()


def _task(database, mod, kind):
    """Return what a search knows when it begins."""
    context = te_programs.context(mod, kind)
    templates = [schedule_queries.from_tvm(one.trace) for one in context.generate_design_space()]
    replays = DraftReplayer(mod, context.space_generator.postprocs, threads=2, seed=1)
    handle = handle_of(database)

    def warm(most=64):
        return Relatives.of(handle, mod, context.target).adapted(templates, most)

    def prior():
        return Relatives.of(handle, mod, context.target).tile_prior()

    return SimpleNamespace(
        templates=templates, replays=replays, warm=warm, prior=prior, target=context.target
    )


@pytest.fixture
def database(sqlite_file):
    with Database(sqlite_file, target=te_programs.KINDS["llvm"][0]) as found:
        yield found


CASES = {
    "matmul": (_matmul, (64, 96, 128), (80, 64, 48), "llvm"),
    "conv2d": (_conv_relu, (14, 16, 32), (28, 8, 48), "llvm"),
    "softmax": (_softmax, (64, 128), (96, 256), "llvm"),
    "gpu": (_matmul, (256, 256, 256), (512, 128, 384), "cuda"),
}


@pytest.mark.parametrize("case", CASES)
def test_warm_drafts_fit_donors_to_another_shape(sqlite_file, case):
    make, known, asked, kind = CASES[case]
    database = Database(sqlite_file, target=te_programs.KINDS[kind][0])
    _tune(database, _module(make, *known), kind)
    task = _task(database, _module(make, *asked), kind)
    found = task.warm()
    assert len(found) >= 4
    assert len({one.draft.key for one in found}) == len(found)
    assert all(one.kept == 1 for one in found)
    # The best donor comes first, and all times are of the donor.
    seconds = [one.seconds for one in found]
    assert seconds == sorted(seconds) and seconds[0] == 1e-3
    store = handle_of(database).store
    assert None not in store.programs.ids([one.donor for one in found])
    # TVM draws numbers of threads on a GPU, which may be illegal; on a CPU it draws nothing.
    replayed = task.replays._map(task.replays._postprocessed, [one.draft for one in found])
    legal = sum(one is not None for one in replayed)
    assert legal == len(found) if kind == "llvm" else legal >= len(found) / 2


def test_adapted_programs_compute_the_right_product(database):
    _tune(database, _module(_matmul, 32, 48, 64), "llvm")
    task = _task(database, _module(_matmul, 40, 36, 28), "llvm")
    host = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    for schedule in task.replays.schedules([one.draft for one in task.warm(2)]):
        assert_multiplies(tvm.compile(schedule.mod, host)["main"], 40, 36, 28)


def test_module_is_a_donor_of_itself_only_for_another_target(database):
    own = _module(_matmul, 64, 64, 64)
    _tune(database, own, "llvm")
    task = _task(database, own, "llvm")
    assert task.warm() == []
    # For another target it is one, without changes.
    context = te_programs.context(own, "vnni")
    templates = [schedule_queries.from_tvm(one.trace) for one in context.generate_design_space()]
    found = Relatives.of(handle_of(database), own, context.target).adapted(templates, 64)
    assert found and {one.distance for one in found} == {2.0}


def test_no_warm_drafts_come_of_nothing_other_operators_and_kinds_of_target(database, tools):
    task = _task(database, _module(_matmul, 64, 64, 64), "llvm")
    assert task.warm() == []
    assert task.prior() is None
    _tune(database, _module(_softmax, 32, 64), "llvm", 4)
    assert task.warm() == []
    assert task.prior() is None
    own = Relatives.of(handle_of(database), _module(_softmax, 64, 64), task.target)
    assert own.adapted([], 8) == []  # no templates
    other = Relatives.of(handle_of(database), _module(_softmax, 64, 64), tools.cuda)
    assert other.adapted(task.templates, 8) == []


def test_first_warm_drafts_come_from_several_workloads(database):
    near, far = _module(_matmul, 64, 64, 128), _module(_matmul, 64, 128, 128)
    _tune(database, near, "llvm", 16)
    _tune(database, far, "llvm", 16, seed=2)
    found = _task(database, _module(_matmul, 64, 64, 96), "llvm").warm(8)
    distances = [one.distance for one in found]
    assert len(found) == 8
    assert distances[0] == min(distances)
    assert len(set(distances[:5])) == 2


def test_tile_prior_prefers_tiles_of_neighbours(database):
    _tune(database, _module(_matmul, 128, 64, 64), "llvm", 1)
    task = _task(database, _module(_matmul, 64, 64, 64), "llvm")
    (neighbour,) = task.warm()
    assert _shares_above(task.prior(), neighbour.draft) < 0.1


def test_tile_prior_prefers_tiles_of_the_module_itself(database):
    mod = _module(_matmul, 64, 64, 64)
    _tune(database, _module(_matmul, 128, 64, 64), "llvm", 8)
    _tune(database, mod, "llvm", 1, seed=5)
    own = schedule_queries.from_tvm(database.get_top_k(database.commit_workload(mod), 1)[0].trace)
    assert _shares_above(_task(database, mod, "llvm").prior(), own) < 0.1


def _shares_above(prior, draft):
    """Return the greatest share of tilings that the prior prefers to a program's own one."""
    shares = []
    for place, factors in tiles_of(draft):
        every = tilings(math.prod(factors), len(factors), 64, random.Random(0))
        weights = prior.weigh(len(factors), every, place)
        mine = weights[list(every).index(factors)]
        shares.append(sum(weight > mine for weight in weights) / len(weights))
    return max(shares)


def test_warm_drafts_skip_programs_that_todays_tvm_cannot_express(database):
    known = _module(_matmul, 128, 64, 64)
    _tune(database, known, "llvm", 2)
    store = handle_of(database).store
    lost = b'[["GetSBlock",[],["C","main"],["b0"]],["SetAxisSeparator",["b0"],[0,"write",[1]],[]]]'
    (best,) = store.records.top_k([1], None, 1)
    program = best.measurement.program
    odd = Program(program.workload, program.target, Trace(lost, None, b"[[],[],[]]"))
    store.records.add([Measurement(odd, (1e-6,))], Source("log"))
    assert store.records.best([1]).measurement.program == odd
    found = _task(database, _module(_matmul, 64, 64, 64), "llvm").warm()
    assert found and odd.digest not in [one.donor for one in found]
