"""The check of a database: which damage it reports."""

import pytest
from builders import FOREIGN, OWN, copied, make_batch, make_measurement, make_session, sql

import tunedb
from tunedb.errors import NotFoundError, SchemaError, StorageError
from tunedb.maintenance import check
from tunedb.models.cards import body_digest, model_digest
from tunedb.records import Failure, FailureKind, Phase, Quarantined, Status
from tunedb.results import NewModel, SessionFactor


def fill(url):
    with tunedb.open(url) as store:
        store.records.add(make_batch(5, 20), OWN)
        store.records.add([make_measurement(30, (2e-3,), session=make_session())], FOREIGN)
        failure = Failure(FailureKind.CRASH, Phase.RUN, "nul \0 and more")
        store.records.add([make_measurement(31, None, status=Status.FAILED, failure=failure)], OWN)
        store.records.add([make_measurement(32, (1e-3,), empty=True)], OWN)
        store.quarantine.add([Quarantined("log.json", 3, "not JSON", b"{\xff")], OWN)
        store.trust.retract([1], "no reason")
        fill_derived(store)


def fill_derived(store):
    """Add a model with placeholder boosters, one without a body, predictions and factors."""
    versions = {"numpy": "2", "tunedb": "0", "xgboost": "3"}
    for kind, body in (("ranker", b"boosters"), ("failures", None)):
        card = {"versions": versions, "body": {"digest": body_digest(b"boosters").hex()}}
        digest = model_digest(kind, b"{}", b"t" * 16, versions)
        store.models.add(NewModel(digest, kind, b"{}", b"t" * 16, card, body))
    store.models.add_predictions(1, {1: 0.5, 2: -1.0})
    factors = [("session", 1, 0, 1.3, 0.01, 5), ("source", 1, 0, 1.0, None, 0)]
    store.runs.set_factors(1, [SessionFactor(*one) for one in factors])


@pytest.fixture(scope="module")
def filled(sqlite_template, tmp_path_factory):
    path = copied(sqlite_template, tmp_path_factory.mktemp("filled") / "filled.db")
    fill(path)
    return path


@pytest.fixture
def file(filled, quick_checks):
    return copied(filled, filled.with_name("copy.db"))


def test_check_finds_no_problem_in_undamaged_database(store_url):
    fill(store_url)
    seen = []
    report = check.check(store_url, on_row=lambda done, total: seen.append((done, total)))
    assert (report.found, report.problems, report.measurements) == (0, [], 23)
    assert seen[-1] == (report.rows, report.rows)
    assert [done for done, _ in seen] == list(range(1, report.rows + 1))


def test_check_of_a_sample_reads_that_many_measurements_and_writes_nothing(file):
    before = file.read_bytes()
    for sample, measurements in ((5, 5), (500, 23), (0, 0), (None, 23)):
        assert check.check(file, sample=sample).measurements == measurements
    assert file.read_bytes() == before


#: Changes of rows that do not hide each other: table, id, change and the check that finds it.
CHANGES = [
    [
        ("measurement", 2, "mean = 1.0", "derived"),
        ("measurement", 3, "served = 0", "derived"),
        *(("measurement", id_, "served = 1", "derived") for id_ in (1, 21, 22, 23)),
        ("measurement", 4, "occurrence = 9", "digest"),
        ("measurement", 5, "donor = x'00'", "digest"),
        ("measurement", 6, "run_secs = x'00'", "readable"),
        ("measurement", 7, "origin = 'elsewhere'", "readable"),
        ("measurement", 8, "status = 7", "readable"),
    ],
    [("failure", 1, "kind = 'bored'", "readable")],
    [
        ("failure", 1, "message = 'fine'", "digest"),
        ("quarantine", 1, "line = 4", "digest"),
        ("session", 1, "started_at = 0", "digest"),
        ("source", 1, "name = 'x'", "digest"),
        ("target", 1, "architecture = 'x'", "derived"),
        ("model", 1, "training_digest = x'00'", "digest"),
        ("model", 2, "parameters = '{\"eta\":1}'", "digest"),
    ],
    [("program", 8, "decisions = x'00'", "digest"), ("model", 1, "kind = 'failures'", "digest")],
    [("workload", 1, "body = x'00'", "readable"), ("model", 1, "card = '{'", "readable")],
    [("workload", 1, "format = 'x'", "digest"), ("model", 2, "card = '[]'", "readable")],
    [("target", 1, "config = '{'", "readable"), ("model", 2, "card = '{}'", "readable")],
    [("sketch", 1, "digest = x'00'", "digest"), ("model", 2, "parameters = '{'", "readable")],
    [("model", 1, "body = x'00'", "readable")],
]

#: Other statements, and the problems that they make.
DAMAGES = {
    "UPDATE failure SET kind = 'bored'": [("readable", "measurement", 22)],
    "UPDATE prediction SET score = 9e999 WHERE program_id = 2": [("readable", "prediction", 1)],
    "UPDATE prediction SET program_id = 99 WHERE program_id = 2": [
        ("foreign keys", "prediction", None)
    ],
    "UPDATE session_factor SET factor = 0.0": [("readable", "session_factor", 1)],
    "UPDATE session_factor SET factor = 9e999": [("readable", "session_factor", 1)],
    "UPDATE session_factor SET subject_id = 9": [("readable", "session_factor", 1)],
    "UPDATE session_factor SET subject = 'x' WHERE subject = 'source'": [
        ("readable", "session_factor", 1)
    ],
    "DELETE FROM tail; DELETE FROM session": [
        *(("foreign keys", "program", 1), ("foreign keys", "measurement", 21)),
    ],
    "DROP INDEX ix_measurement_top_k; CREATE VIEW more AS SELECT 1; PRAGMA application_id = 1": [
        *(("schema", "ix_measurement_top_k", None), ("schema", "more", None)),
        ("schema", None, None),
    ],
} | {
    "; ".join(f"UPDATE {table} SET {what} WHERE id = {id_}" for table, id_, what, _ in changes): [
        (found_by, table, id_) for table, id_, _, found_by in changes
    ]
    for changes in CHANGES
}


@pytest.mark.parametrize("statements", DAMAGES)
def test_check_reports_damage(statements, file):
    for statement in statements.split("; "):
        sql(file, statement)
    report = check.check(file)
    problems = {(found.check, found.table, found.id) for found in report.problems}
    assert problems >= set(DAMAGES[statements])
    assert report.found >= len(report.problems) > 0
    assert all("\n" not in found.message for found in report.problems)


def test_check_rejects_damaged_pages(file):
    data = bytearray(file.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    for start in range(2 * page, len(data), page):
        data[start : start + 40] = b"\xaa" * 40
    file.write_bytes(bytes(data))
    with pytest.raises(StorageError, match=r"it is damaged; restore a copy, or try: sqlite3"):
        check.check(file)


def test_check_counts_problems_beyond_those_it_lists(file, monkeypatch):
    monkeypatch.setattr(check, "MOST_PROBLEMS", 3)
    sql(file, "UPDATE measurement SET mean = 9.0")
    report = check.check(file)
    assert len(report.problems) == 3 and report.found >= 20


def test_check_rejects_missing_files_and_files_of_other_formats(tmp_path):
    with pytest.raises(NotFoundError):
        check.check(tmp_path / "missing.db")
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(SchemaError):
        check.check(tmp_path / "text")
