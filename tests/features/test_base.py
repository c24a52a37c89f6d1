"""The registry of feature sets."""

import importlib.metadata

import pytest
from builders import EntryPoint as Entry
from fake_sets import Scheduled, Steps

from tunedb import extensions
from tunedb.errors import NotFoundError, PluginError
from tunedb.features import base


@pytest.fixture
def entries(monkeypatch):
    """A list that stands for all entry points."""
    added = []
    monkeypatch.setattr("tunedb.extensions.entry_points", lambda group: added)
    base.load_feature_sets.cache_clear()
    yield added
    base.load_feature_sets.cache_clear()


def test_feature_set_returns_registered_set_by_name(entries):
    steps, scheduled = Steps(), Scheduled()
    entries += [Entry("fake.steps", steps), Entry("fake.scheduled", scheduled)]
    assert list(base.feature_sets()) == ["fake.scheduled", "fake.steps"]
    assert base.feature_set("fake.steps") is steps
    assert base.feature_names("fake.steps") == base.feature_names(steps) == ("id", "decisions")
    with pytest.raises(NotFoundError, match=r"no feature set 'x'; there are: fake\.scheduled, fa"):
        base.feature_set("x")
    for one, is_steps in ((steps, True), (scheduled, False)):
        assert isinstance(one, base.StepFeatures) is is_steps
        assert isinstance(one, base.NestFeatures) is not is_steps


def test_broken_sets_are_reported_and_left_out(entries, monkeypatch):
    told = []
    monkeypatch.setattr(extensions._log, "warning", lambda text, *args: told.append(text % args))
    entries += [
        Entry("fake.steps", Steps()),
        Entry("broken", ImportError("no kernel")),
        Entry("alien", object()),
        Entry("renamed", Steps()),
    ]
    found, broken = base.load_feature_sets()
    assert list(found) == ["fake.steps"]
    assert broken["broken"] == "ImportError: no kernel"
    assert "neither StepFeatures" in broken["alien"]
    assert broken["renamed"] == "TypeError: it calls itself 'fake.steps'"
    assert "feature set broken (other:OBJECT) does not load: no kernel" in told
    assert len(told) == 3
    with pytest.raises(PluginError, match=r"'broken' does not load \(ImportError: no kernel\)"):
        base.feature_set("broken")


def test_empty_tunedb_plugins_disables_sets_of_other_packages(entries, monkeypatch):
    entries.append(Entry("fake.steps", Steps(), "tunedb.features.x:X"))
    entries.append(Entry("fake.scheduled", Scheduled()))
    monkeypatch.setenv("TUNEDB_PLUGINS", "")
    assert list(base.feature_sets()) == ["fake.steps"]


def test_sets_of_this_package_load_with_distinct_columns():
    """They are all that the package registers as entry points."""
    base.load_feature_sets.cache_clear()
    found, broken = base.load_feature_sets()
    assert broken == {}
    registered = {entry.name for entry in importlib.metadata.entry_points(group=base.GROUP)}
    assert set(found) == registered
    for one in found.values():
        assert len(set(one.columns)) == len(one.columns)
        assert isinstance(one.version, int) and one.version >= 1
        assert (one.needs is base.Needs.STEPS) == isinstance(one, base.StepFeatures)
