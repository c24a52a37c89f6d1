"""Training on the workers of a Dask cluster: the model of one machine, to the byte."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learnable import examples_of, learnable, quick
from small_data import SMALL_STEPS, fill

from tunedb.errors import PluginError, StorageError, UsageError
from tunedb.models import cluster
from tunedb.models._dask import Cluster, import_xgboost_dask
from tunedb.models._xgboost import import_xgboost
from tunedb.models.bins import Bins
from tunedb.models.boosting import BINS
from tunedb.models.cluster import divide, fit_on_cluster
from tunedb.models.loading import load
from tunedb.models.training import fit, select
from tunedb.store import Store

distributed = pytest.importorskip("distributed")

#: Most programs have some rows, some have none.
EXAMPLES = learnable(10, 24, rows=(0, 3))


def start(workers, **options):
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=":0", **options
    )


@pytest.fixture(scope="module")
def client():
    """Two workers, each a process of its own."""
    with start(2) as local, distributed.Client(local) as client:
        yield client


@pytest.fixture(scope="module")
def here():
    """Three workers that are threads of this process, where a test can see what they do."""
    with start(3, processes=False) as local, distributed.Client(local) as client:
        yield client


def addresses(client):
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


# ---------------------------------------------------------------------- the same model


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"patience": 4, "rounds": 30},
        {"rows": "aggregated"},
        {"loss": "rank", "hessian_power": 0.5, "patience": 3},
        {"members": 3, "colsample_bytree": 0.5},
        {"training_set": "first:20"},
    ],
    ids=str,
)
def test_equal_to_one_machine(choices, client):
    recipe = quick(**choices)
    expected = fit(EXAMPLES, recipe, threads=1)
    assert bool(expected.history) == ("patience" in choices)
    found = fit_on_cluster(client, EXAMPLES, recipe)
    assert found.model.to_bytes() == expected.model.to_bytes()
    for name in ("history", "rounds", "best_round", "held_out", "programs", "left_out"):
        assert getattr(found, name) == getattr(expected, name)


def test_bins_of_a_sample(client):
    """There are more rows than bounds of bins are taken from."""
    examples = learnable(workloads=5, programs=2000, rows=(1, 5))
    recipe = quick(rounds=3)
    expected = fit(examples, recipe, threads=1).model
    found = fit_on_cluster(client, examples, recipe).model
    assert found.to_bytes() == expected.to_bytes()


@pytest.mark.parametrize("subsample", [1.0, 0.5])
def test_one_worker(subsample, client):
    recipe = quick(subsample=subsample)
    found = fit_on_cluster(client, EXAMPLES, recipe, workers=addresses(client)[1:])
    assert found.model.to_bytes() == fit(EXAMPLES, recipe, threads=1).model.to_bytes()


def test_rows_are_sampled_on_each_worker(client):
    """XGBoost draws them there, so the model is another one, and as good."""
    recipe = quick(subsample=0.5, rounds=30)
    one = fit(EXAMPLES, recipe, threads=1).model.score_examples(EXAMPLES)
    two = fit_on_cluster(client, EXAMPLES, recipe).model.score_examples(EXAMPLES)
    assert not np.array_equal(one, two)
    assert np.corrcoef(one, two)[0, 1] > 0.95


def test_more_workers_than_workloads(here):
    for workloads in (1, 2):
        examples = learnable(workloads=workloads)
        found = fit_on_cluster(here, examples, quick()).model
        assert found.to_bytes() == fit(examples, quick(), threads=1).model.to_bytes()


def test_two_trainings_at_once_wait_for_each_other(here):
    expected = fit(EXAMPLES, quick(), threads=1).model.to_bytes()
    found = []

    def train():
        found.append(fit_on_cluster(here, EXAMPLES, quick()).model.to_bytes())

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected] * 3


# ---------------------------------------------------------------------- who has what


@pytest.fixture
def on_workers(monkeypatch):
    """What XGBoost makes of a worker's partitions, on all of them: (rows, labels) of each."""
    data = import_xgboost("xgboost.dask.data")
    create, seen = data._create_quantile_dmatrix, []

    def watched(*, parts, **options):
        made = create(parts=parts, **options)
        seen.append([(part["data"], part["label"]) for part in parts])
        assert made.num_row() == sum(len(part["data"]) for part in parts)
        return made

    monkeypatch.setattr(data, "_create_quantile_dmatrix", watched)
    return seen


def test_no_program_and_no_workload_is_divided(here, on_workers, monkeypatch):
    divided = []
    monkeypatch.setattr(
        cluster, "divide", lambda *given: divided.append(divide(*given)) or divided[-1]
    )
    # A workload for two targets is two groups.
    groups = tuple(replace(g, workload=g.workload // 2) for g in EXAMPLES.groups)
    examples = replace(EXAMPLES, groups=groups)
    recipe = quick(training_set="first:30")
    fit_on_cluster(here, examples, recipe)
    chosen = select(examples, recipe)
    (shares,) = divided
    # Each once: whole workloads, and so whole groups.
    assert sorted(np.concatenate(shares)) == np.unique(chosen.workload).tolist()
    assert sorted(len(parts) for parts in on_workers) == [1, 1, 1]
    found = {int(labels[0]): (rows, labels) for ((rows, labels),) in on_workers}
    bins = Bins.of(chosen.rows, BINS, threads=1)
    for number, share in enumerate(shares):
        whole = chosen.take(np.isin(chosen.workload, share)).rows
        bins.round_down(whole)
        assert np.array_equal(found[number][0], whole)
        assert np.array_equal(found[number][1], np.full(len(whole), number))


def test_xgboost_trains_through_dask(here, monkeypatch):
    dask = import_xgboost_dask()
    trained, train = [], dask.train

    def watched(client, settings, data, rounds, **options):
        trained.append((client, type(data), rounds))
        return train(client, settings, data, rounds, **options)

    monkeypatch.setattr(dask, "train", watched)
    recipe = quick(patience=3, members=2)
    fitted = fit_on_cluster(here, EXAMPLES, recipe)
    rounds = [recipe.rounds, fitted.best_round, fitted.best_round]
    assert trained == [(here, dask.DaskQuantileDMatrix, one) for one in rounds]


def test_a_program_of_two_groups(here):
    """Two machines of a target measured it; of one of them nothing is learnt."""
    twice = replace(EXAMPLES, program_ids=EXAMPLES.program_ids % 40)
    found = fit_on_cluster(here, twice, quick(training_set="first:20")).model
    expected = fit(EXAMPLES, quick(training_set="first:20"), threads=1).model
    assert found.to_bytes() == expected.to_bytes()


def labels_of(rows_by_workload):
    """Return examples with a program for each number of rows."""
    sizes = [size for sizes in rows_by_workload for size in sizes]
    group = np.repeat(np.arange(len(rows_by_workload)), [len(s) for s in rows_by_workload])
    return examples_of(np.zeros((sum(sizes), 1)), sizes, group, np.ones(len(sizes)))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_divide(rows_by_workload, workers):
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


def test_divide_by_hand():
    examples = labels_of([[7], [5], [4], [3, 1], [2]])
    assert [share.tolist() for share in divide(examples, 2)] == [[0, 3], [1, 2, 4]]


# ---------------------------------------------------------------------- from a database


def check_database(client, url):
    recipe = quick(rounds=5)
    with Store(url) as store:
        fill(store)
        labels = load(store, SMALL_STEPS, rows=False)
        expected = fit(load(store, SMALL_STEPS), recipe, threads=1)
    found = fit_on_cluster(client, labels, recipe, url=url)
    assert found.model.to_bytes() == expected.model.to_bytes()


def test_workers_read_a_file(client, sqlite_file):
    check_database(client, str(sqlite_file))


def test_workers_read_postgresql(client, postgres_url):
    check_database(client, postgres_url)


def test_another_database(client, stored, sqlite_file):
    labels = load(stored, SMALL_STEPS, rows=False)
    with pytest.raises(StorageError, match="is not the database that the labels came from"):
        fit_on_cluster(client, labels, quick(), url=str(sqlite_file))


# ---------------------------------------------------------------------- what goes wrong


def test_one_worker_fails(client, capfd):
    """The others do not wait for it, and are free afterwards."""
    rows = EXAMPLES.rows.copy()
    rows[5, 2] = np.nan
    began = time.monotonic()
    with pytest.raises(UsageError, match=r"c2 of program \d+ is nan"):
        fit_on_cluster(client, replace(EXAMPLES, rows=rows), quick())
    assert time.monotonic() - began < 30
    assert fit_on_cluster(client, EXAMPLES, quick()).rounds == 10
    assert "Traceback" not in capfd.readouterr().err


def test_xgboost_refuses_the_recipe(client):
    with pytest.raises(UsageError, match="XGBoost refuses the recipe"):
        fit_on_cluster(client, EXAMPLES, quick(gamma=-1.0))


def test_nothing_to_learn_from(client):
    with pytest.raises(UsageError, match="nothing to learn from"):
        fit_on_cluster(client, EXAMPLES.take([1]), quick())
    without = examples_of(np.zeros((0, 2)), [0, 0, 0], [0, 0, 0], [1, 0.5, 0.2])
    with pytest.raises(UsageError, match="without rows of features small"):
        fit_on_cluster(client, without, quick(), url="somewhere.db")


def test_neither_rows_nor_a_database(client):
    with pytest.raises(UsageError, match="examples without rows"):
        fit_on_cluster(client, replace(EXAMPLES, rows=EXAMPLES.rows[:0]), quick())


def test_no_worker():
    with (
        start(0, processes=False) as local,
        distributed.Client(local) as client,
        pytest.raises(UsageError, match=r"no worker at inproc://.*; run: dask worker inproc"),
    ):
        fit_on_cluster(client, EXAMPLES, quick())


def test_a_worker_that_is_not_there(here):
    with pytest.raises(UsageError, match=r"no worker tcp://nowhere:1; there are: inproc://"):
        fit_on_cluster(here, EXAMPLES, quick(), workers=["tcp://nowhere:1"])


def test_a_worker_is_lost_before_it_is_sent_anything(here):
    gone = Cluster(here, ["inproc://gone/1/1"])
    with pytest.raises(StorageError, match="a worker was lost while it trained; run it again"):
        gone.send(EXAMPLES)


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PluginError, match=r"pip install 'tunedb\[dask\]'"):
        fit_on_cluster(None, EXAMPLES, quick())


@pytest.mark.stress
@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_is_killed(number):
    with start(2) as local, distributed.Client(local) as client:
        fit_on_cluster(client, EXAMPLES, quick(rounds=1))
        pids = client.run(os.getpid)
        victim = pids[addresses(client)[number]]
        timer = threading.Timer(3, os.kill, (victim, signal.SIGKILL))
        timer.start()
        with pytest.raises(StorageError, match="a worker was lost while it trained; run it again"):
            fit_on_cluster(client, EXAMPLES, quick(rounds=1_000_000))
        timer.join()
        client.wait_for_workers(2)
        expected = fit(EXAMPLES, quick(), threads=1).model.to_bytes()
        assert fit_on_cluster(client, EXAMPLES, quick()).model.to_bytes() == expected
