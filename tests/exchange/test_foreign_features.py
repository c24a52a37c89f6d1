"""Features of others: rows that a merge stores, marks or rejects, and rows that count."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from builders import OWN, make_graph, make_measurement
from exchanges import THEIRS, Given, bundled, given_by, rename
from fake_sets import Scheduled

from tunedb import limits
from tunedb.errors import StorageError
from tunedb.exchange import held_features
from tunedb.exchange.bundle import BundlePeer
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.merge import merge
from tunedb.exchange.sync import pull
from tunedb.extraction import verify
from tunedb.extraction.extract import extract
from tunedb.features.steps import STEPS
from tunedb.maintenance.check import check
from tunedb.models.dataset import load
from tunedb.records import Source, Trust
from tunedb.storage import schema
from tunedb.storage.exchange_types import Selection
from tunedb.storage.store import Store

ASKED = Selection(features=True)
BOARD = Source("board")
N = 40

#: A set that is computed from modules, so that it cannot be verified without TVM.
MODULES = Scheduled("their.modules", columns=("a", "b"))


def record(number, **fields):
    return make_measurement(number, workload=make_graph((16, 16)), **fields)


def fill(path, forged=(), count=N, value=1e30):
    """Store records with features; the rows of the programs `forged` are `value`."""
    with Store(path) as store:
        store.records.add([record(number) for number in range(1, count + 1)], BOARD)
        programs = store.programs.get(range(1, count + 1))
        rows = [one.copy() for one in STEPS.rows(programs)]
        for place in forged:
            rows[place][0, :] = value
        store.features.add(STEPS, [(one.id, row) for one, row in zip(programs, rows, strict=True)])
        store.features.add(MODULES, [(one.id, np.ones((2, 2))) for one in programs])
    return path


@pytest.fixture
def their_path(makes):
    return makes.empty(THEIRS)


def take(store, path, **options):
    with closing(DatabasePeer(path)) as peer:
        return merge(store, peer, selection=ASKED, **options)


def take_bundle(store, path):
    with closing(BundlePeer(bundled(path, ASKED))) as peer:
        return merge(store, peer, selection=ASKED)


def take_by_pull(store, path):
    return pull(store, path, selection=ASKED)


def rows_of(store, feature_set=STEPS, count=N):
    found = store.features.rows(feature_set, range(1, count + 1))
    return [None if rows is None else rows[0].tolist() for rows in found]


def marks(store):
    """Return the sources of merged rows by program and set."""
    mark = schema.foreign_feature.c
    rows = store._db.select(schema.foreign_feature.select().order_by(*mark))
    return {(row.program_id, row.feature_set_id): row.source_id for row in rows}


def right_rows(store, count=N):
    return [rows[0].tolist() for rows in STEPS.rows(store.programs.get(range(1, count + 1)))]


@pytest.mark.parametrize("way", [take, take_bundle, take_by_pull])
def test_merged_features_name_the_source_of_their_record(store, their_path, way):
    report = way(store, fill(their_path))
    assert (report.new, report.features, report.rejected) == (N, 2 * N, 0)
    (source,) = store.sources.summaries()
    both = {(id_, set_id): source.id for id_ in range(1, N + 1) for set_id in (1, 2)}
    assert marks(store) == both
    assert rows_of(store) == right_rows(store)
    assert way(store, their_path).features == 0
    assert len(load(store, STEPS)) == N


@pytest.mark.parametrize("way", [take, take_bundle, take_by_pull])
def test_attack_6_merge_rejects_all_rows_of_a_set_with_a_forged_row(store, their_path, way):
    """One row has -1e30; an earlier release stored it, and no check found it."""
    report = way(store, fill(their_path, forged=[7], value=-1e30))
    assert (report.new, report.features) == (N, N)
    ((reason, counted),) = report.reasons.items()
    assert "feature: steps version" in reason
    assert f"1 of {N} programs that were computed again differ" in reason
    assert "tunedb extract --set steps" in reason
    assert counted.count == N
    assert {set_id for _, set_id in marks(store)} == {1}
    assert store.features.rows(STEPS, [1]) == [None]
    assert extract(store, STEPS).done == N
    assert rows_of(store) == right_rows(store)


def test_attack_6_merge_rejects_features_of_own_programs(store, their_path):
    """An earlier release stored them where own ones were missing, and kept them for good."""
    fill(their_path, forged=range(N))
    store.records.add([record(number) for number in range(1, N + 1)], OWN)
    report = take(store, their_path)
    assert (report.features, report.known, marks(store)) == (0, N, {})
    ((reason, counted),) = report.reasons.items()
    assert "measured by a source that is trusted here" in reason
    assert "--accept-trusted-names" in reason
    assert counted.count == 2 * N
    assert extract(store, STEPS).done == N
    assert rows_of(store) == right_rows(store)


def test_merge_stores_features_of_own_programs_once_if_accepted(store, their_path, makes):
    """A second database with the same features adds no rows."""
    store.records.add([record(number) for number in range(1, N + 1)], OWN)
    assert take(store, fill(their_path), accept_trusted_names={THEIRS}).features == 2 * N
    assert len(marks(store)) == 2 * N
    again = fill(rename(makes.copy(their_path), "c" * 32))
    assert take(store, again, accept_trusted_names=True).features == 0


def test_merge_rejects_features_of_trusted_source_unless_accepted(store, their_path):
    take(store, fill(their_path))
    (source,) = store.sources.summaries()
    store.trust.set(source.id, Trust.VERIFIED)
    for set_id in (1, 2):
        store.pruning.remove_features(set_id, range(1, N + 1))
    report = take(store, their_path)
    assert report.features == 0
    assert any("source 'board' is trusted here" in reason for reason in report.reasons)
    assert take(store, their_path, accept_trusted_names=True).features == 2 * N
    # Rows of a trusted source count.
    assert rows_of(store) == right_rows(store)


def test_attack_6_foreign_rows_do_not_count_once_the_program_is_measured_here(store, their_path):
    """An own record of the same program comes later; rows merged before do not count for it."""
    take(store, fill(their_path))
    assert rows_of(store, MODULES)[0] == [1, 1]
    store.records.add([record(1, occurrence=1)], OWN)
    assert rows_of(store, MODULES)[:2] == [None, [1, 1]]
    assert rows_of(store)[0] is None
    assert store.features.coverage(STEPS).known == N - 1
    records = store.training.records(STEPS)
    of_program = records.program_ids == 1
    assert records.n_rows[of_program].tolist() == [-1, -1]
    assert (records.n_rows[~of_program] == 1).all()
    assert extract(store, STEPS).done == N
    assert rows_of(store) == right_rows(store)


def test_extract_replaces_merged_rows_with_own_ones(store, their_path):
    """A forged row that the sample misses is gone after the next extraction."""
    take(store, fill(their_path))
    before = store.programs.without_features(STEPS, limit=N + 1)
    assert [program.id for program in before] == list(range(1, N + 1))
    report = extract(store, STEPS, limit=N // 2)
    assert (report.known, report.done) == (0, N // 2)
    assert len([key for key in marks(store) if key[1] == 1]) == N - N // 2
    own = np.full((1, len(STEPS.columns)), 7.0)
    assert store.features.add(STEPS, [(1, own), (N, own)]) == 1
    assert rows_of(store)[0] == right_rows(store)[0]
    assert rows_of(store)[-1] == own[0].tolist()
    # A merge does not replace own rows.
    assert take(store, their_path).features == 0
    assert (N, 1) not in marks(store)


def test_merge_of_accepted_backup_stores_rows_as_own(store, their_path):
    """The user confirms that the file is a backup of this database."""
    fill(rename(their_path, store.key))
    report = take(store, their_path)
    assert (report.new, report.features) == (0, 0)
    assert take(store, their_path, accept_trusted_names={store.key}).features == 2 * N
    assert marks(store) == {}


def test_merge_finds_forged_rows_by_computing_a_sample(store, their_path, monkeypatch):
    """FEATURE_SAMPLE: so many programs are computed again, and no more."""
    computed = []
    differing = verify.differing

    def counted(feature_set, programs, rows):
        computed.append(len(programs))
        return differing(feature_set, programs, rows)

    monkeypatch.setattr(verify, "differing", counted)
    monkeypatch.setattr(limits, "FEATURE_SAMPLE", 16)
    assert take(store, fill(their_path, forged=range(0, N, 2))).features == N
    assert computed == [16]


def test_interrupted_merge_leaves_no_unverified_features(store, their_path, monkeypatch):
    """Rows wait in a temporary file until all have come and the sample is right."""
    fill(their_path, forged=[3])
    monkeypatch.setattr(limits, "IMPORT_ROWS", 5)

    def stop(report):
        if report.read:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(store, their_path, on_progress=stop)
    assert store.features.sets() == []
    assert take(store, their_path).features == N


def test_dry_run_verifies_features_of_known_programs(store, their_path):
    fill(their_path, forged=[3])
    with closing(DatabasePeer(their_path)) as peer:
        merge(store, peer)
    report = take(store, their_path, dry_run=True)
    assert report.features == N
    assert any("programs that were computed again differ" in reason for reason in report.reasons)
    assert store.features.sets() == []


def test_full_temporary_folder_raises_storage_error(store, their_path, monkeypatch):
    fill(their_path)

    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(held_features, "_new_file", Full)
    with pytest.raises(StorageError, match=r"no room for the features .*No space left.*TMPDIR"):
        take(store, their_path)
    assert store.features.sets() == []


def test_merge_ignores_features_of_records_that_did_not_come(store, their_path):
    """Programs without records are not stored; their rows are neither counted nor written."""
    fill(their_path)
    chunks = given_by(their_path, ASKED)
    kept = [replace(c, rows=c.rows[:3]) if c.table == "measurement" else c for c in chunks]
    report = merge(store, Given(kept), selection=ASKED)
    assert (report.new, report.features) == (3, 6)
    assert check(store.url).problems == []
