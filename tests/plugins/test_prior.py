"""Priors: bundles of programs that tunedb ships, which answer after all databases."""

import logging
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from platform import machine
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from builders import make_target
from learnable import learnable, quick
from logged import logged
from tvm.s_tir import meta_schedule as ms

from tunedb.errors import FormatError, NotFoundError
from tunedb.exchange.bundle import new_manifest, write_bundle
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.prior import card_of, read_card
from tunedb.features.steps import STEPS
from tunedb.models import prior_models
from tunedb.models.cards import TrainingCost
from tunedb.models.dataset import ExampleWorkload
from tunedb.models.run_trials import RunTrial
from tunedb.models.training import fit
from tunedb.plugins.metaschedule import Database, modules
from tunedb.plugins.metaschedule.cost_model import learner
from tunedb.plugins.metaschedule.cost_model.learner import CostModelOptions, Learner
from tunedb.plugins.metaschedule.cost_model.scoring import Scoring
from tunedb.plugins.metaschedule.database.layers import PriorLayer
from tunedb.plugins.metaschedule.deploy.apply import schedule
from tunedb.plugins.metaschedule.search import schedule_queries
from tunedb.plugins.metaschedule.search.draft_model import FEATURES, DraftModel, DraftTask
from tunedb.plugins.metaschedule.search.prior_training import trained_models
from tunedb.plugins.metaschedule.search.warm_start import Relatives
from tunedb.programs.workload_info import signature_of
from tunedb.storage.approval import approvals
from tunedb.storage.exchange_types import EVERYTHING
from tunedb.storage.store import Store

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from candidates import random_candidates

TOOLS = Path(__file__).parents[2] / "tools"


def commit(database, tools, mod, seconds, tile=4, **options):
    tools.commit(database, mod, [seconds], tile=(16 // tile, tile), **options)


def bundled(path, database, *, card=True):
    """Make a prior of a database; with its own card, another one, or none."""
    with Store(database) as store:
        peer = DatabasePeer(store.url, own=True)
        card = card_of(peer, EVERYTHING, "MIT") if card is True else card
        manifest = new_manifest(peer.store_key, EVERYTHING, card)
        write_bundle(path, peer.chunks(EVERYTHING), manifest)
        peer.close()
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def prior(tools, tmp_path_factory):
    """A prior of two records of a matrix product, and of 32 random programs of another."""
    folder = tmp_path_factory.mktemp("prior")
    with closing(Database(folder / "team.db", target=tools.llvm_newer, prior="none")) as database:
        mod = tools.matmul()
        for seconds, tile in ((0.25, 8), (0.5, 4)):
            commit(database, tools, mod, seconds, tile, target=tools.llvm_newer)
        other = tools.matmul(64)
        workload = database.commit_workload(other)
        args = ms.arg_info.ArgInfo.from_entry_func(other)
        for number, each in enumerate(random_candidates(other, tools.llvm_newer, 32, 1)):
            made = (each.trace, workload, [1e-3 + 1e-5 * number], tools.llvm_newer, args)
            database.commit_tuning_record(ms.database.TuningRecord(*made))
    return bundled(folder / "team.prior", folder / "team.db")


def test_prior_answers_after_all_records_of_the_user(prior, path, opened, tools, cache):
    mod, target = tools.matmul(), tools.llvm_newer
    database = opened(path, target=target, prior=prior, fallback="compatible")
    assert not cache.exists(), "no question needed it yet"
    (use,) = schedule(mod, database)[1]
    assert (use.kind, use.layer, use.mean) == ("measured", "shipped", 0.25)
    assert tools.top(database, mod) == [[0.25], [0.5]]
    assert (len(database), database.get_all_tuning_records()) == (0, [])
    # The user's record is slower and of a target that is only compatible, but it answers.
    other_cores = tvm.target.Target({**modules.plain(target.export()), "num-cores": 8})
    commit(database, tools, mod, 2.0, target=other_cores)
    assert tools.best(database, mod, target) == [2.0]
    commit(database, tools, mod, 1.0, target=target)
    assert tools.best(database, mod, target) == [1.0]
    (kept,) = (cache / "tunedb" / "priors").glob("*.db")
    with closing(Store(kept, read_only=True)) as store:
        assert store.records.count() == 34
    # TVM never gets modules of the prior, so it needs no approval.
    assert "priors" not in str([each.location for each in approvals()[0]])


def test_prior_is_unpacked_by_a_process_beside(prior, path, opened, tools, cache, monkeypatch):
    database = opened(path, target=tools.llvm_newer, prior=prior)
    layer = database._handle.prior
    layer.begin_unpacking()
    process = layer._unpacking
    layer.begin_unpacking()
    assert layer._unpacking is process
    layer.finish_unpacking()
    assert process.returncode == 0
    (made,) = (cache / "tunedb" / "priors").glob("*.db")
    before = made.stat().st_mtime_ns
    assert tools.best(database, tools.matmul(), tools.llvm_newer) == [0.25]
    assert made.stat().st_mtime_ns == before
    layer.begin_unpacking()
    assert layer._unpacking is None, "the cache has it"
    # One whose process is killed, by the end of a run or by the system, is unpacked all the same.
    made.unlink()
    for end in (layer.close, lambda: layer._unpacking.kill()):
        layer.begin_unpacking()
        process = layer._unpacking
        end()
        layer.finish_unpacking()
        assert process.returncode is not None
    assert tools.best(database, tools.matmul(), tools.llvm_newer) == [0.25]
    # A compilation begins with it.
    works = []
    with monkeypatch.context() as patch:
        patch.setattr(PriorLayer, "begin_unpacking", lambda layer: works.append("unpacking"))
        schedule(tools.matmul(), database, on_step=lambda done, total, work: works.append(work))
    assert works[:2] == ["unpacking", "lowering"]
    # A missing one is the first question's to tell.
    with logged() as lines:
        missing = opened(path, target=tools.llvm_newer, prior=path.with_suffix(".prior"))
        missing._handle.prior.begin_unpacking()
        assert missing._handle.prior._unpacking is None
    assert lines == []


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ({"kind": "llvm", "num-cores": 64, "mcpu": "x86-64-v4"}, [0.25]),
        ({"kind": "llvm", "num-cores": 2, "mcpu": "skylake-avx512"}, [0.25]),
        ({"kind": "llvm", "num-cores": 2, "mcpu": "x86-64-v3"}, None),
        ({"kind": "cuda", "arch": "sm_80"}, None),
    ],
)
def test_prior_answers_only_for_targets_with_equal_vectors(
    target, answer, prior, path, opened, tools
):
    target = tvm.target.Target(target)
    with logged() as lines:
        database = opened(path, target=target, prior=prior)
        assert tools.best(database, tools.matmul(), target) == answer
    assert lines == []


def test_prior_that_cannot_be_read_is_skipped_with_one_warning(
    prior, path, opened, tools, tmp_path
):
    data = prior.read_bytes()
    plain = tmp_path / "plain.db"
    with closing(Database(plain, target=tools.llvm)) as database:
        commit(database, tools, tools.matmul(), 0.5)
    bundles = {
        "changed.prior": data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
        "newer.prior": data[:8] + b"\xff\xff" + data[10:],
        "plain.prior": bundled(tmp_path / "made", plain, card=None).read_bytes(),
        "odd.prior": bundled(tmp_path / "odd", plain, card={"licence": 3}).read_bytes(),
        "none.prior": None,
    }
    mod = tools.matmul()
    for number, (name, content) in enumerate(bundles.items()):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with logged() as lines:
            database = opened(path, target=tools.llvm_newer, prior=tmp_path / name)
            if number == 0:
                assert tools.best(database, mod, tools.llvm_newer) is None
                commit(database, tools, mod, 1.0, target=tools.llvm_newer)
            for _ in range(2):
                assert tools.best(database, tools.matmul(8), tools.llvm_newer) is None
            assert tools.best(database, mod, tools.llvm_newer) == [1.0]
        (line,) = lines
        assert name in line and "left out" in line


def test_prior_skips_program_that_does_not_replay(path, opened, tools, tmp_path):
    mod, other = tools.matmul(), tools.matmul(block="Z")
    with closing(Database(tmp_path / "team.db", target=tools.llvm)) as database:
        commit(database, tools, mod, 0.5)
        record = tools.record(other, database.commit_workload(mod), [0.25], block="Z")
        database.commit_tuning_record(record)
    made = bundled(tmp_path / "team.prior", tmp_path / "team.db")
    database = opened(path, target=tools.llvm, prior=made)
    (use,) = schedule(mod, database)[1]
    assert (use.layer, use.mean) == ("shipped", 0.5)


def test_unpacking_rejects_programs_that_are_not_allowed(path, opened, tools, tmp_path, cache):
    mod = tools.matmul()
    with closing(Database(tmp_path / "team.db", target=tools.llvm)) as database:
        commit(database, tools, mod, 0.5)
        evil = tvm.s_tir.Schedule(mod)
        (loop, *_) = evil.get_loops(evil.get_sblock("C"))
        evil.annotate(loop, "pragma_import_llvm", "define void @main() { ret void }")
        args = ms.arg_info.ArgInfo.from_entry_func(mod)
        workload = database.commit_workload(mod)
        record = ms.database.TuningRecord(evil.trace, workload, [0.25], tools.llvm, args)
        database.commit_tuning_record(record)
        assert len(database) == 2
    made = bundled(tmp_path / "team.prior", tmp_path / "team.db")
    database = opened(path, target=tools.llvm, prior=made)
    assert tools.top(database, mod) == [[0.5]]
    (kept,) = (cache / "tunedb" / "priors").glob("*.db")
    with closing(Store(kept, read_only=True)) as store:
        assert store.records.count() == 1


def test_donors_and_the_model_of_drafts_come_from_the_prior(prior, path, opened, tools):
    mod, target = tools.matmul(128), tools.llvm_newer
    context = ms.TuneContext(mod, target=target, space_generator="post-order-apply", num_threads=1)
    spaces = [one.trace.simplified(remove_postproc=True) for one in context.generate_design_space()]
    templates = list(map(schedule_queries.from_tvm, spaces))
    known = []
    for choice in (prior, "none"):
        handle = opened(path, target=target, prior=choice)._handle
        task = DraftTask.of(handle, modules.to_workload(mod), target)
        has_model = DraftModel(handle, task.target).prepare_for(task, 1)
        known.append((has_model, len(Relatives.of(handle, mod, target).adapted(templates, 8)) > 0))
    assert known == [(True, True), (False, False)]
    # Times of the prior and of the user are in separate groups, even for an equal program.
    database = opened(path, target=target, prior=prior)
    commit(database, tools, tools.matmul(), 4.0, 8, target=target)
    commit(database, tools, tools.matmul(), 8.0, 4, target=target)
    task = DraftTask.of(database._handle, modules.to_workload(tools.matmul()), target)
    own, _ = DraftModel(database._handle, task.target)._learner.own_examples(task.example.digest)
    assert sorted(own.throughput) == [0.5, 0.5, 1.0, 1.0]
    assert len(set(own.group)) == 2


def test_models_of_a_prior_are_read_instead_of_trained(
    prior, path, opened, tools, tmp_path, monkeypatch
):
    models = tmp_path / "team.models"
    made = dict(trained_models(prior))
    assert list(made) == ["llvm-avx512f-steps.draft", "llvm-avx512f-steps"]
    prior_models.write(made, prior, models)
    trained = []
    for file in (tmp_path / "missing", models):
        monkeypatch.setattr(prior_models, "FILE", file)
        handle = opened(path, target=tools.llvm_newer, prior=prior)._handle
        task = DraftTask.of(handle, modules.to_workload(tools.matmul(128)), tools.llvm_newer)
        for features in (FEATURES, STEPS):
            model = DraftModel(handle, task.target, features=features)
            assert model.prepare_for(task, 1)
            trained.append(model._learner.scoring.scorer.model.to_bytes())
    assert trained[2:] == [model.model.to_bytes() for model in made.values()]
    assert trained[:2] != trained[2:]
    # A damaged file costs the time to train.
    models.write_bytes(b"PK")
    with logged(logging.INFO) as messages:
        model = DraftModel(handle, task.target)
        assert model.prepare_for(task, 1)
    assert model._learner.scoring.scorer.model.to_bytes() == trained[0]
    assert "the model llvm-avx512f-steps.draft of the prior is left out" in messages[0]


def test_prior_prefers_donors_of_equally_wide_vectors_to_faster_ones(path, opened, tools, tmp_path):
    """The best programs of a machine with wider vectors have other tiles."""
    mod, here = tools.matmul(), {"kind": "llvm", "num-cores": 2, "mcpu": "haswell"}
    with closing(Database(tmp_path / "team.db", prior="none")) as database:
        for mcpu, seconds, tile in (("znver1", 0.5, 8), ("znver5", 0.25, 16)):
            target = tvm.target.Target(here | {"mcpu": mcpu})
            commit(database, tools, mod, seconds, tile, target=target)
    made = bundled(tmp_path / "team.prior", tmp_path / "team.db")
    handle = opened(path, target=tvm.target.Target(here), prior=made)._handle
    stored = handle.targets.stored(tvm.target.Target(here))
    workload = signature_of(modules.to_workload(tools.matmul(64)))
    ((neighbour, donors),) = handle.prior.relatives(workload, stored, 4, 4)
    assert neighbour.level == "compatible"
    assert [donor.seconds for donor in donors] == [0.5]


class Steps:
    """Example source of a store without programs."""

    def load(self, recipe, scope):
        raise NotFoundError("nothing")


class Shipped:
    """Programs and a model of a prior."""

    def __init__(self, programs, scorer=None):
        self.programs, self.model, self.loads = programs, scorer, 0

    def load(self, recipe, most):
        self.loads += 1
        return self.programs.derived(rows=self.programs.rows[:0])

    def with_rows(self, examples):
        chosen = np.isin(self.programs.program_ids, examples.program_ids)
        return self.programs.take(chosen)

    def scorer(self):
        return self.model


def begun(store, prior, workload, monkeypatch):
    """Return the learner of a store without programs that has begun with a workload."""
    monkeypatch.setattr(learner, "BASE_PROGRAMS", 400)
    monkeypatch.setattr(Scoring, "has_drifted", lambda *_: False)
    features = SimpleNamespace(name="small", version=3, columns=prior.programs.columns)
    options = CostModelOptions(features, quick(), avoid_failures=False)
    own = Learner(store, options, make_target(0), [[1]], Steps(), prior)
    own.begin()
    own.prepare_for(workload, 1)
    return own


def test_each_own_program_replaces_four_of_the_prior_in_training(store, monkeypatch):
    """The prior does not delay the training either."""
    here = ExampleWorkload(0, b"w" * 16, "here", None, (), None)
    own = begun(store, Shipped(learnable(10, 40)), here, monkeypatch)
    assert own.scoring.scorer.trained_on == 400
    trained_on = []
    for number in range(1, 141):
        row = np.full((1, 6), 999 + number, np.float32)
        trial = RunTrial(b"%016d" % number, 0, row, 1e-3 * (1000 + number))
        own.add(here, [trial], (), 1)
        trained_on.append(own.scoring.scorer.trained_on)
        assert own.own_examples(here.digest)[1] == max(0, 400 - 4 * number)
    assert trained_on[62] == 400
    # With 64 trials the model trains on them and 144 programs of the prior.
    assert trained_on[63] == 64 + 144
    assert trained_on[-1] == 128


def test_the_model_of_the_prior_serves_until_the_run_has_64_trials(store, monkeypatch):
    programs = learnable(10, 40)
    fitted = fit(programs, quick())
    row = learner.row_of(fitted, programs, store.key, TrainingCost())
    prior = Shipped(programs, learner.scorer_of(fitted.model, row))
    here = ExampleWorkload(0, b"w" * 16, "here", None, (), None)
    own = begun(store, prior, here, monkeypatch)
    assert own.scoring.scorer is prior.model
    assert prior.loads == 0
    assert set(own.workloads) == set(programs.workloads)
    for number in range(64):
        assert own.scoring.scorer is prior.model
        row = np.full((1, 6), 999 + number, np.float32)
        own.add(here, [RunTrial(b"%016d" % number, 0, row, 1e-3 * (1000 + number))], (), 1)
    assert own.scoring.scorer.trained_on == 64 + 144
    assert prior.loads == 1


@pytest.mark.parametrize(
    ("name", "value"), [("machines", [3]), ("targets", "cuda"), ("workloads", None)]
)
def test_read_card_rejects_values_of_other_types(prior, tmp_path, name, value):
    card = {key: read_card(prior)[key] for key in ("licence", "machines", "targets", "workloads")}
    made = bundled(tmp_path / "odd.prior", prior.with_name("team.db"), card=card | {name: value})
    with pytest.raises(FormatError, match=f"odd.prior: damaged: its card has no valid {name}"):
        read_card(made)


def test_read_card_returns_licence_counts_targets_and_machines(prior):
    card = read_card(prior)
    assert (card["licence"], card["records"], card["workloads"]) == ("MIT", 34, 2)
    assert card["targets"] == ["llvm x86-64-v4 2 cores"]
    (machine,) = card["machines"]
    assert machine["tvm"] == tvm.__version__ and machine["cpu"]
    assert card["digest"] == prior.read_bytes()[-32:].hex()


@pytest.mark.stress
def test_tools_make_extend_and_check_a_prior(tmp_path):
    def tool(name, *words):
        command = [sys.executable, str(TOOLS / name), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first, second = tmp_path / "first.prior", tmp_path / "second.prior"
    few = ("--trials", 2, "--networks")
    tool("make_prior.py", tmp_path / "one", *few, "perceptron-64", "--bundle", first)
    mcpu = "x86-64-v2" if machine() == "x86_64" else "generic"
    more = (*few, "speech-400", "--mcpu", mcpu)
    tool("make_prior.py", tmp_path / "two", "--add", first, *more, "--bundle", second)
    assert any(mcpu in target for target in read_card(second)["targets"])
    assert read_card(second)["records"] > read_card(first)["records"] > 0
    assert read_card(second)["licence"] == "Apache-2.0"
    held_out = ("--networks", "perceptron-1", "--held-out", "--trials", 2)
    third = tmp_path / "third.prior"
    tool("make_prior.py", tmp_path / "two", *held_out, "--bundle", third)
    assert read_card(third)["records"] > read_card(second)["records"]
    assert "passed" in tool("check_prior.py", second, "--sample", 1, "--repeat", 1)
