"""Training from disk: the model of training in memory, to the byte, and nothing left behind."""

import re
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
from effort import long
from learnable import examples_of, learnable, quick

from tunedb.errors import FormatError, StorageError, UsageError
from tunedb.models import boosting, external
from tunedb.models.external import fit_external
from tunedb.models.training import fit

#: Most programs have some rows, some have none.
EXAMPLES = learnable(10, 24, rows=(0, 3))


class Memory:
    """A store of examples that are in no database."""

    location = "memory"

    def __init__(self, examples):
        starts = examples.starts
        self.held = {
            id_: examples.rows[starts[i] : starts[i + 1]].copy()
            for i, id_ in enumerate(examples.program_ids.tolist())
        }
        self.features = self
        self.asked = []

    def rows(self, feature_set, ids):
        assert (feature_set.name, feature_set.version) == ("small", 3)
        self.asked += ids
        return [self.held.get(id_) for id_ in ids]


@pytest.fixture
def folder(tmp_path):
    """A folder that must be empty at the end; XGBoost must not miss pages in it."""
    path = tmp_path / "pages"
    path.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield path
    assert list(path.iterdir()) == []


@pytest.fixture
def small_sample(monkeypatch):
    """Bounds of bins come from a sample, as they do where there are many rows."""
    monkeypatch.setattr(boosting, "_SAMPLE_ROWS", 50)


def train(store, examples=EXAMPLES, recipe=None, **options):
    options = {"page_bytes": 1000, "threads": 1, **options}
    bare = replace(examples, rows=examples.rows[:0])
    return fit_external(store, bare, recipe or quick(), **options)


@pytest.mark.parametrize(
    "choices",
    [
        {"patience": 4, "rounds": 30},
        {"rows": "aggregated"},
        {"loss": "rank", "hessian_power": 0.5},
        {"members": 3, "subsample": 0.5, "colsample_bytree": 0.5},
    ],
    ids=str,
)
def test_fit_external_equals_training_in_memory(choices, folder, small_sample):
    recipe = quick(**choices)
    expected = fit(EXAMPLES, recipe, threads=1)
    # Pages of some 40 rows.
    found = train(Memory(EXAMPLES), recipe=recipe, cache_dir=folder)
    assert found.model.to_bytes() == expected.model.to_bytes()
    for name in ("history", "rounds", "best_round", "held_out", "programs", "left_out"):
        assert getattr(found, name) == getattr(expected, name)


@pytest.mark.parametrize("page_bytes", [long(1), 100, long(10_000), long(2**30)])
def test_model_does_not_depend_on_page_size_and_threads(page_bytes, folder, small_sample):
    recipe = quick(rounds=3)
    expected = fit(EXAMPLES, recipe, threads=1).model.to_bytes()
    for threads in (1, 2):
        options = {"page_bytes": page_bytes, "cache_dir": folder, "threads": threads}
        found = train(Memory(EXAMPLES), recipe=recipe, **options)
        assert found.model.to_bytes() == expected


def test_fit_external_reads_only_rows_of_training_set_and_only_once(folder):
    store = Memory(EXAMPLES)
    train(store, recipe=quick(training_set="first:5", rounds=2), page_bytes=100, cache_dir=folder)
    first = EXAMPLES.program_ids[EXAMPLES.trials < 5]
    assert store.asked == first.tolist()


def test_fit_external_rejects_missing_and_infinite_rows(folder):
    store = Memory(EXAMPLES)
    last = EXAMPLES.program_ids[EXAMPLES.sizes > 0][-1]
    store.held[last][-1, 2] = np.nan
    with pytest.raises(FormatError, match=r"c2 of program .* is nan"):
        train(store, cache_dir=folder)
    del store.held[EXAMPLES.program_ids[70]]
    with pytest.raises(StorageError, match="features of program 170 changed during"):
        train(store, cache_dir=folder)
    examples = examples_of(np.zeros((0, 2)), [0, 0, 0], [0, 0, 0], [1, 0.5, 0.2])
    with pytest.raises(UsageError, match="have no rows of features small; run: tunedb extract"):
        train(Memory(examples), examples, cache_dir=folder)


def test_fit_external_reports_missing_cache_folder(tmp_path):
    with pytest.raises(UsageError, match=r"gone: feature rows cannot be written there .*No such"):
        train(Memory(EXAMPLES), cache_dir=tmp_path / "gone")


@pytest.mark.parametrize("fit", ["nothing", "rows"])
def test_fit_external_reports_full_disk_and_removes_its_files(mount, fit):
    """If the rows fit and the bins do not, XGBoost would abort the process."""
    examples = learnable(programs=500, columns=60)
    size, message = "256k", r"cannot be written there .*choose another folder"
    if fit == "rows":
        size = f"{examples.rows.nbytes // 1024 + 100}k"
        message = "MiB are needed, but 0 are free"
    folder = mount(size)
    with pytest.raises(StorageError, match=message):
        train(Memory(examples), examples, cache_dir=folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("columns", "page_bytes"), [(2, 2**20), (60, 20_000), (60, 2**20)])
def test_bins_take_no_more_disk_space_than_required_in_advance(
    columns, page_bytes, folder, monkeypatch
):
    examples = learnable(programs=500, columns=columns)
    asked, found = [], []
    usage = shutil.disk_usage

    def check(self, rows, count):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=-1))
        try:  # pytest.raises would keep the frames, and so the matrix
            space(self, rows, count)
        except StorageError as error:
            asked.append(int(re.search(r"\((\d+) MiB", str(error))[1]) + 1)

    space = external.Paging._check_space
    monkeypatch.setattr(external.Paging, "_check_space", check)

    def on_round(number, figure):
        found.append(sum(file.stat().st_size for file in folder.glob("*/*")))

    options = {"page_bytes": page_bytes, "cache_dir": folder, "on_round": on_round}
    train(Memory(examples), examples, quick(rounds=1), **options)
    assert found[0] <= asked[0] << 20


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(5, "Input/output error")])
@pytest.mark.parametrize("passes", [0, 1, 2])
def test_errors_while_xgboost_reads_pages_end_training(passes, error, folder, monkeypatch):
    """XGBoost calls back through ctypes, which drops an interrupt and would train on a part."""
    pages, begun = external._RowFile.pages, []

    def failing(self):
        begun.append(1)
        for number, page in enumerate(pages(self)):
            if len(begun) == passes + 1 and number == 2:
                raise error
            yield page

    monkeypatch.setattr(external._RowFile, "pages", failing)
    expected = KeyboardInterrupt if error is KeyboardInterrupt else StorageError
    with pytest.raises(expected):
        train(Memory(EXAMPLES), cache_dir=folder)
    assert len(begun) == passes + 1


def test_matrix_with_missing_rows_raises_keyboard_interrupt(folder, monkeypatch):
    """An interrupt while XGBoost's own wrapper runs makes it skip pages."""
    pages, begun = external._RowFile.pages, []

    def fewer(self):
        begun.append(1)
        found = list(pages(self))
        return iter(found if len(begun) == 1 else found[:-1])

    monkeypatch.setattr(external._RowFile, "pages", fewer)
    with pytest.raises(KeyboardInterrupt):
        train(Memory(EXAMPLES), cache_dir=folder)


def test_interrupt_during_boosting_removes_all_files(folder):
    def on_round(number, figure):
        assert len(list(folder.glob("*/bins*"))) == 1
        assert list(folder.glob("*/rows")) == []
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Memory(EXAMPLES), cache_dir=folder, on_round=on_round)
