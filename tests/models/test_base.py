"""Parts of models: found by name, checked, and left out with a reason."""

import numpy as np
import pytest
from builders import EntryPoint as Entry

from tunedb import extensions
from tunedb.errors import NotFoundError, PluginError
from tunedb.models import base


class First:
    """A label: the first time of each program."""

    name = "mine"

    def seconds(self, times, starts):
        return times[starts[:-1]]


@pytest.fixture
def entries(monkeypatch):
    added = []
    found = {"tunedb.labels": added}
    monkeypatch.setattr(extensions, "entry_points", lambda group: found.get(group, []))
    base.load_parts.cache_clear()
    yield added
    base.load_parts.cache_clear()


def test_recipe_part_splits_name_and_argument_at_the_colon(entries):
    entries.append(Entry("mine", First()))
    found, argument = base.recipe_part("label", "mine:64")
    assert found.seconds(np.array([3.0, 1.0, 2.0]), np.array([0, 2, 3])).tolist() == [3.0, 2.0]
    assert argument == "64"
    assert base.recipe_part("label", "mine")[1] == ""


def test_parts_that_do_not_load_are_reported(entries):
    entries += [
        Entry("mine", First()),
        Entry("alien", object()),
        Entry("other", First()),
        Entry("broken", ImportError("no scipy")),
    ]
    found, broken = base.load_parts("label")
    assert list(found) == ["mine"]
    assert broken == {
        "alien": "TypeError: it is not a LabelPolicy (tunedb.models.base)",
        "broken": "ImportError: no scipy",
        "other": "TypeError: it calls itself 'mine'",
    }
    with pytest.raises(PluginError, match=r"label 'broken' does not load \(ImportError: no sci"):
        base.recipe_part("label", "broken:3")
    with pytest.raises(NotFoundError, match="no label 'x'; there are: mine"):
        base.recipe_part("label", "x")


def test_load_parts_returns_all_parts_of_tunedb():
    base.load_parts.cache_clear()
    found = {kind: base.load_parts(kind) for kind in base.GROUPS}
    assert [broken for _, broken in found.values()] == [{}] * len(found)
    assert {kind: list(parts) for kind, (parts, _) in found.items()} == {
        "loss": ["log", "rank", "relative", "squared", "throughput"],
        "row model": ["aggregated", "pack-sum"],
        "label": ["mean", "median", "minimum"],
        "training set": ["all", "diverse", "first", "origin"],
    }
