"""Training on the workers of a Dask cluster: as good a model as that of one machine."""

import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from builders import sql
from effort import EFFORT, long
from hypothesis import given
from hypothesis import strategies as st
from learnable import examples_of, learnable, quick
from raising import raises_line
from small_data import SMALL_STEPS, fill

from tunedb.errors import PluginError, StorageError, UsageError
from tunedb.models import distributed as cluster
from tunedb.models._xgboost import import_xgboost
from tunedb.models.boosting import best_round
from tunedb.models.dataset import load
from tunedb.models.distributed import divide, fit_on_cluster
from tunedb.models.losses import THROUGHPUT
from tunedb.models.pairs import Pairs
from tunedb.models.training import fit, select
from tunedb.storage.store import Store

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

#: Most programs have some rows, some have none.
ALL = learnable(16, 120, rows=(0, 3), failing=20)
#: Examples for training, and workloads that models do not see.
EXAMPLES, UNSEEN = ALL.take(ALL.workload < 10), ALL.take(ALL.workload >= 10)


def start(workers, **options):
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", **options
    )


@pytest.fixture(scope="module", autouse=True)
def scratch(tmp_path_factory):
    """Dask leaves its folder for scratch files in a temporary one."""
    with dask.config.set(temporary_directory=str(tmp_path_factory.mktemp("dask"))):
        yield


@pytest.fixture(scope="module")
def client():
    """Two workers that are sent data over TCP; in the long run each is a process of its own."""
    options = {"processes": EFFORT != "few", "protocol": "tcp"}
    with start(2, **options) as local, distributed.Client(local) as client:
        yield client


@pytest.fixture(scope="module")
def here():
    """Three workers that are threads of this process, where a test can see what they do."""
    with start(3, processes=False) as local, distributed.Client(local) as client:
        yield client


def addresses(client):
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def accuracy(model, examples=UNSEEN):
    """Return the share of pairs of programs that a model puts into the right order."""
    pairs = Pairs.from_labels(examples.throughput, examples.group, 32, 0)
    return pairs.accuracy(model.score_examples(examples))


def labels_of(rows_by_workload):
    """Return examples with a program for each number of rows."""
    sizes = [size for sizes in rows_by_workload for size in sizes]
    group = np.repeat(np.arange(len(rows_by_workload)), [len(s) for s in rows_by_workload])
    return examples_of(np.zeros((sum(sizes), 1)), sizes, group, np.ones(len(sizes)))


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_divide_keeps_workloads_whole_and_balances_rows(rows_by_workload, workers):
    """Before any cluster starts: its threads use the generator of Hypothesis."""
    examples = labels_of(rows_by_workload)
    shares = divide(examples, workers)
    assert len(shares) == min(workers, len(rows_by_workload))
    assert all(len(share) for share in shares)
    assert sorted(np.concatenate(shares)) == list(range(len(rows_by_workload)))
    # Graham: the best division's fullest share has at least the mean, and the largest workload.
    rows = np.array([sum(sizes) for sizes in rows_by_workload])
    loads = [rows[share].sum() for share in shares]
    mean = rows.sum() / len(shares)
    assert max(loads) <= max(mean + rows.max() * (1 - 1 / len(shares)), rows.max()) + 1e-9


@pytest.mark.parametrize(
    "choices",
    [
        long({}),
        {"patience": 3, "rounds": 12},
        long({"rows": "aggregated"}),
        long({"loss": "rank", "hessian_power": 0.5, "patience": 3}),
        long({"members": 3, "colsample_bytree": 0.5}),
        long({"training_set": "first:20"}),
        long({"subsample": 0.5}),
    ],
    ids=str,
)
@pytest.mark.parametrize("workers", [long(1), 2])
def test_cluster_trains_a_model_as_accurate_as_one_machine(workers, choices, client):
    """Neither model has seen the workloads; the same workers make the same model again."""
    recipe = quick(**({"rounds": 30} | choices))
    expected = fit(EXAMPLES, recipe, threads=1)
    assert bool(expected.history) == ("patience" in choices)
    addressed = addresses(client)[:workers]
    fitted = fit_on_cluster(client, EXAMPLES, recipe, workers=addressed)
    assert accuracy(fitted.model) == pytest.approx(accuracy(expected.model), abs=0.02)
    assert accuracy(fitted.model) > 0.7  # random order has 0.5
    for name in ("held_out", "programs", "left_out"):
        assert getattr(fitted, name) == getattr(expected, name)
    assert len(fitted.model.boosters) == recipe.members
    if expected.history:
        # The same held-out workloads stop boosting, at a similar accuracy.
        assert fitted.rounds == fitted.best_round == best_round(fitted.history, recipe.patience)
        assert max(fitted.history) == pytest.approx(max(expected.history), abs=0.03)
        assert len(fitted.history) <= recipe.rounds
    again = fit_on_cluster(client, EXAMPLES, recipe, workers=addressed)
    assert again.model.to_bytes() == fitted.model.to_bytes()
    assert again.history == fitted.history


@pytest.mark.stress
def test_cluster_model_of_extreme_columns_is_as_accurate_as_that_of_one_machine(client):
    """Columns are constant, of few values, huge, negative, nearly always 0, and row numbers.

    One machine takes the bounds of bins from a sample of the rows.
    """
    examples = learnable(workloads=5, programs=2000, rows=(1, 5), columns=8)
    rows, rng = examples.rows, np.random.default_rng(0)
    rows[:, 2] = -3e38
    rows[:, 3] = rng.integers(-2, 2, len(rows))
    rows[:, 4] = (rows[:, 4] - 0.5) * 3e38
    rows[:, 5] = -np.exp(30 * rows[:, 5])
    rows[:, 6] *= rng.random(len(rows)) < 1e-3
    rows[:, 7] = np.arange(len(rows))
    recipe = quick(rounds=20, max_depth=6, patience=2)
    expected = fit(examples, recipe, threads=1).model
    model = fit_on_cluster(client, examples, recipe).model
    assert accuracy(model, examples) == pytest.approx(accuracy(expected, examples), abs=0.01)
    used = {key for booster in model.boosters for key in booster.get_score()}
    assert used >= {"f0", "f1"}


@pytest.mark.stress
def test_subsample_changes_the_model_of_a_cluster(client):
    """XGBoost samples rows on each worker."""
    recipe = quick(subsample=0.5)
    whole = fit_on_cluster(client, EXAMPLES, quick()).model
    assert fit_on_cluster(client, EXAMPLES, recipe).model.to_bytes() != whole.to_bytes()


def test_cluster_trains_with_more_workers_than_workloads_and_leaves_no_data(here):
    for workloads in (1, 2):
        examples = learnable(workloads=workloads)
        model = fit_on_cluster(here, examples, quick()).model
        expected = accuracy(fit(examples, quick(), threads=1).model, examples)
        assert accuracy(model, examples) == pytest.approx(expected, abs=0.03)
    for _ in range(600):
        left = here.run(lambda dask_worker: len(dask_worker.data))
        if not any(left.values()):
            return
        time.sleep(0.1)
    pytest.fail(f"values are left: {left}")


def test_simultaneous_trainings_give_the_same_model(here):
    """Several groups share the ids of their programs, which changes nothing."""
    recipe = quick(training_set="first:20", rounds=3)
    expected = fit_on_cluster(here, EXAMPLES, recipe).model.to_bytes()
    twice = replace(EXAMPLES, program_ids=EXAMPLES.program_ids % 120)
    with ThreadPoolExecutor(2) as pool:
        trainings = [pool.submit(fit_on_cluster, here, one, recipe) for one in (EXAMPLES, twice)]
    assert [one.result().model.to_bytes() for one in trainings] == [expected] * 2


@pytest.mark.stress
def test_waiting_trainings_do_not_time_out(here, monkeypatch):
    """The time limit covers waiting for other workers, but not for other trainings."""
    monkeypatch.setattr(cluster, "_MEETING_SECONDS", 3)
    expected = fit_on_cluster(here, EXAMPLES, quick()).model.to_bytes()
    with ThreadPoolExecutor() as pool:
        long = pool.submit(fit_on_cluster, here, EXAMPLES, quick(rounds=1500))
        found = pool.submit(fit_on_cluster, here, EXAMPLES, quick())
        assert long.result().rounds == 1500
        assert found.result().model.to_bytes() == expected


def test_each_worker_gets_whole_workloads(here, monkeypatch):
    """The test compares the input of XGBoost and the matrices on its workers."""
    divided, given_to, found = [], [], {}
    remembered = lambda *given: divided.append(divide(*given)) or divided[-1]  # noqa: E731
    monkeypatch.setattr(cluster, "divide", remembered)
    module, local = cluster._import_xgboost_dask(), cluster._TrainingState.here
    original = module.DaskQuantileDMatrix

    def matrix(client, rows, *, label, **options):
        given_to.extend((rows, label))
        return original(client, rows, label=label, **options)

    def on_worker(shared, data):
        matrix, programs = local(shared, data)
        (number,) = np.unique(data.get_label()).astype(int).tolist()
        found[number] = (distributed.get_worker().address, data.num_row(), programs)
        return matrix, programs

    monkeypatch.setattr(module, "DaskQuantileDMatrix", matrix)
    monkeypatch.setattr(cluster._TrainingState, "here", on_worker)
    # A workload for two targets is two groups.
    groups = tuple(replace(g, workload=g.workload // 2) for g in EXAMPLES.groups)
    examples = replace(EXAMPLES, groups=groups)
    recipe = quick(training_set="first:30", rounds=2)
    fit_on_cluster(here, examples, recipe)
    chosen = select(examples, recipe)
    (shares,), (rows, labels) = divided, given_to
    # Each workload, and so each group, is assigned once and as a whole.
    assert sorted(np.concatenate(shares)) == np.unique(chosen.workload).tolist()
    assert rows.numblocks == (3, 1)
    assert sorted(address for address, *_ in found.values()) == addresses(here)
    for number, share in enumerate(shares):
        programs = np.flatnonzero(np.isin(chosen.workload, share))
        whole = chosen.take(programs).rows
        assert np.array_equal(rows.blocks[number].compute(), whole)
        assert labels.blocks[number].compute().tolist() == [number] * len(whole)
        assert found[number][1] == len(whole)
        assert np.array_equal(found[number][2], programs)


def test_large_labels_cause_no_warning_about_large_tasks(here):
    """Dask warns of tasks that contain large data, and transfers them slowly."""
    examples = learnable(workloads=12, programs=500, rows=(1, 1))
    recipe = quick(loss="rank", patience=2, rounds=3)
    large = {"distributed.admin.large-graph-warning-threshold": "100 kB"}
    with dask.config.set(large), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_on_cluster(here, examples, recipe).programs == len(examples)


def test_divide_gives_next_largest_workload_to_worker_with_fewest_rows():
    examples = labels_of([[7], [5], [4], [3, 1], [2]])
    assert [share.tolist() for share in divide(examples, 2)] == [[0, 3], [1, 2, 4]]


def test_workers_read_rows_from_both_databases(client, store_url):
    recipe = quick(rounds=2)
    with Store(store_url) as store:
        fill(store)
        labels = load(store, SMALL_STEPS, rows=False)
        examples = load(store, SMALL_STEPS)
    read = fit_on_cluster(client, labels, recipe, url=store_url)
    sent = fit_on_cluster(client, examples, recipe)
    assert read.model.to_bytes() == sent.model.to_bytes()


def test_fit_on_cluster_rejects_url_of_another_database(client, stored, sqlite_file):
    labels = load(stored, SMALL_STEPS, rows=False)
    with pytest.raises(StorageError, match="is not the database of the labels"):
        fit_on_cluster(client, labels, quick(), url=str(sqlite_file))


def test_failure_of_one_worker_ends_training_at_once_and_frees_the_others(
    client, sqlite_file, capfd, monkeypatch
):
    """The others would wait for an hour, and are free afterwards."""
    monkeypatch.setattr(cluster, "_MEETING_SECONDS", 3600)
    with Store(str(sqlite_file)) as store:
        fill(store)
        labels = load(store, SMALL_STEPS, rows=False)
        damaged = int(labels.program_ids[0])
    sql(sqlite_file, "DELETE FROM feature WHERE program_id = ?", damaged)
    with pytest.raises(StorageError, match=f"features of program {damaged} changed during"):
        fit_on_cluster(client, labels, quick(), url=str(sqlite_file))
    with pytest.raises(UsageError, match="XGBoost rejects the recipe"):
        fit_on_cluster(client, EXAMPLES, quick(gamma=-1.0))
    assert fit_on_cluster(client, EXAMPLES, quick(rounds=2)).rounds == 2
    assert "Traceback" not in capfd.readouterr().err


class Broken:
    """A loss whose derivatives raise an error of XGBoost."""

    labels = weights = np.ones(1)

    def base(self, sizes):
        return 0.0

    def derivatives(self, scores):
        message = "[1] a.cc\n\n- something is wrong\nStack trace:\n 1"
        raise import_xgboost().core.XGBoostError(message)


def test_errors_of_xgboost_on_workers_are_reported_in_one_line(here, monkeypatch):
    monkeypatch.setattr(type(THROUGHPUT), "objective", lambda *given: Broken())
    message = r"^inproc://\S+: XGBoost failed on its workers \(something is wrong\); check that"
    with raises_line(StorageError, match=message):
        fit_on_cluster(here, EXAMPLES, quick())


WITHOUT_ROWS = examples_of(np.zeros((0, 2)), [0, 0, 0], [0, 0, 0], [1, 0.5, 0.2])


@pytest.mark.parametrize(
    ("examples", "options", "message"),
    [
        (EXAMPLES.take([1]), {}, "nothing to learn from"),
        (WITHOUT_ROWS, {"url": "somewhere.db"}, "have no rows of features small"),
        (replace(EXAMPLES, rows=EXAMPLES.rows[:0]), {}, "examples have no rows"),
        (EXAMPLES, {"workers": ["tcp://nowhere:1"]}, "no worker tcp://nowhere:1; there are: inpr"),
    ],
    ids=["one program", "no rows of programs", "no rows and no URL", "unknown worker"],
)
def test_fit_on_cluster_rejects_examples_without_rows_and_unknown_workers(
    examples, options, message, here
):
    with pytest.raises(UsageError, match=message):
        fit_on_cluster(here, examples, quick(), **options)


def test_fit_on_cluster_rejects_cluster_without_workers():
    error = pytest.raises(UsageError, match=r"no worker at inproc://.*; run: dask worker inproc")
    with start(0, processes=False) as local, distributed.Client(local) as client, error:
        fit_on_cluster(client, EXAMPLES, quick())


@pytest.mark.stress
def test_fit_on_cluster_reports_scheduler_that_does_not_answer():
    """The scheduler ends after the client has connected."""
    timeouts = {"distributed.comm.timeouts.connect": "1s"}
    with (
        dask.config.set(timeouts),
        start(1) as local,
        distributed.Client(local.scheduler_address) as client,
    ):
        local.close()
        # The client notices it after a while.
        with pytest.raises(StorageError, match="scheduler does not answer; start it"):
            fit_on_cluster(client, EXAMPLES, quick())
        client.close()
        with pytest.raises(StorageError, match=r"^Dask's scheduler does not answer; start it"):
            fit_on_cluster(client, EXAMPLES, quick())


def test_send_reports_worker_that_was_lost(here):
    gone = cluster._Cluster(here, here.scheduler, None, None, ["inproc://gone/1/1"])
    with pytest.raises(StorageError, match="a worker was lost during training; run it again"):
        gone.send(EXAMPLES, "inproc://gone/1/1")


@pytest.mark.parametrize("name", ["dask.dataframe", *map(long, ("distributed", "xgboost.dask"))])
def test_fit_on_cluster_names_the_extra_to_install_if_dask_is_missing(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with raises_line(PluginError, match=r"pip install 'tunedb\[dask\]'"):
        fit_on_cluster(None, EXAMPLES, quick())


@pytest.fixture
def trackers_end(monkeypatch):
    """End XGBoost's trackers, which would wait a minute for a lost worker and then raise."""
    module, started = cluster._import_xgboost_dask(), []
    given_up = suppress(import_xgboost().core.XGBoostError)

    class Tracker(module.RabitTracker):
        def start(self):
            started.append(self)
            super().start()

        def wait_for(self):
            with given_up:
                super().wait_for()

    monkeypatch.setattr(module, "RabitTracker", Tracker)
    yield
    for one in started:
        with given_up:
            one.free()


@pytest.mark.stress
@pytest.mark.parametrize("number", [0, 1])
def test_training_reports_killed_worker_and_works_again_afterwards(number, trackers_end):
    with start(2) as local, distributed.Client(local) as client:
        fit_on_cluster(client, EXAMPLES, quick(rounds=1))
        pids = client.run(os.getpid)
        victim = pids[addresses(client)[number]]
        timer = threading.Timer(3, os.kill, (victim, signal.SIGKILL))
        timer.start()
        with pytest.raises(StorageError, match="a worker was lost during training; run it again"):
            fit_on_cluster(client, EXAMPLES, quick(rounds=1_000_000))
        timer.join()
        client.wait_for_workers(2)
        expected = accuracy(fit(EXAMPLES, quick(), threads=1).model)
        model = fit_on_cluster(client, EXAMPLES, quick()).model
        assert accuracy(model) == pytest.approx(expected, abs=0.02)
