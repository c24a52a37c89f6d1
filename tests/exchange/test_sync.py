"""Pull and push: incremental, resumable, and right if the other side was replaced or restored."""

import shutil
from pathlib import Path

import pytest
from builders import make_measurement
from exchanges import OWN, away, digests, fill, forget, rename
from raising import raises_line
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url

from tunedb import limits
from tunedb.errors import SchemaError, StorageError, UnreachableError, UsageError
from tunedb.exchange.sync import pull, push
from tunedb.maintenance.prune import PruneRules, plan, prune
from tunedb.records import Failure, FailureKind, Phase, Source, Trust
from tunedb.storage.exchange_types import Selection
from tunedb.storage.store import Store

FROZEN = Path(__file__).parents[1] / "migrations" / "frozen"


@pytest.fixture
def there_url(store_url):
    """The URL of the other database: a file or a server."""
    if "://" not in store_url:
        rename(store_url, "f" * 32)
    return store_url


@pytest.fixture
def there(there_url):
    with Store(there_url) as store:
        yield store


@pytest.mark.parametrize("exchange", [pull, push])
def test_exchange_transfers_only_new_records(here, there, there_url, exchange):
    giver, taker = (there, here) if exchange is pull else (here, there)
    fill(giver, *range(5))
    for new in (5, 0, 2):
        report = exchange(here, there_url)
        assert (report.new, report.known, report.read) == (new, 0, new)
        assert report.location == there.location
        assert digests(here) == digests(there)
        if new == 0:
            fill(giver, 5, 6)
    assert {s.trust for s in taker.sources.summaries()} == {Trust.FOREIGN}


def test_each_selection_has_a_watermark_of_its_own(here, there, there_url):
    some = Selection(workloads=("matmul_1",))
    fill(there, *range(3))
    fill(there, *range(3, 5), workload=1)
    assert pull(here, there_url, selection=some).new == 2
    assert pull(here, there_url).new == 3
    assert pull(here, there_url, selection=some).read == 0


def test_pull_of_best_records_chooses_again_after_new_ones(here, there, there_url):
    best = Selection(best=1, rest=0)
    fill(there, 5, 6, 7)
    assert pull(here, there_url, selection=best).new == 1
    assert pull(here, there_url, selection=best).read == 0
    fill(there, 3)
    assert pull(here, there_url, selection=best).new == 1
    assert here.records.count() == 2


def test_later_failures_come_with_the_next_exchange(here, there, there_url):
    fill(there, 1)
    failed = make_measurement(2, None)
    there.records.add([failed], OWN)
    pull(here, there_url)
    assert here.records.failures() == {}
    there.batches.add_failures([(failed, Failure(FailureKind.TIMEOUT, Phase.RUN, "late"))])
    assert pull(here, there_url).failures == 1
    assert here.records.failures() == {"timeout": 1}
    # A failure of another database is transferred too, but does not count.
    here.batches.add_failures([(failed, Failure(FailureKind.CRASH, Phase.RUN, "odd"))])
    assert push(here, there_url).failures == 1
    assert push(here, there_url).failures == 0
    assert there.records.failures() == {"timeout": 1}


def test_push_transfers_retractions_once(here, there, there_url):
    fill(here, 1, 2)
    push(here, there_url)
    here.trust.retract([1], "the clock was wrong")
    assert push(here, there_url).retractions == 1
    assert there.counts().retracted == 1
    assert push(here, there_url).retractions == 0


def test_a_dry_run_changes_nothing(here, there, there_url):
    fill(there, 0, 1)
    fill(here, 2)
    before = digests(here), digests(there)
    for exchange, new in ((pull, 2), (push, 1)):
        for _ in range(2):
            report = exchange(here, there_url, dry_run=True)
            assert (report.new, report.dry_run) == (new, True)
            assert (digests(here), digests(there)) == before
    assert pull(here, there_url).new == 2


def test_a_server_that_was_restored_gets_again_what_it_lost(here, there, there_url):
    fill(here, *range(6))
    push(here, there_url)
    forget(there_url, above=3)
    assert push(here, there_url).new == 3
    assert digests(there) == digests(here)


def test_pull_compares_all_records_if_rows_were_lost(here, there, there_url):
    fill(there, *range(6))
    pull(here, there_url)
    forget(there_url, above=2)
    fill(there, *range(10, 13))
    report = pull(here, there_url)
    assert (report.new, report.known) == (3, 2)
    assert digests(there) <= digests(here)


def test_pull_notices_other_rows_under_the_same_numbers(here, sqlite_file):
    """The rows are as many as before; only the digest at the watermark differs."""
    with Store(rename(sqlite_file, "f" * 32)) as there:
        fill(there, *range(4))
        pull(here, sqlite_file)
        forget(sqlite_file, above=1)
        fill(there, *range(20, 24))
        assert there.records.count() == 5
        assert pull(here, sqlite_file).new == 4
        assert digests(there) <= digests(here)


@pytest.mark.parametrize("exchange", [pull, push])
def test_pruned_records_do_not_come_back(here, there, there_url, exchange):
    """The record at the watermark is gone, but that does not make it compare all records."""
    giver, taker = (there, here) if exchange is pull else (here, there)
    fill(giver, *range(8))
    assert exchange(here, there_url).new == 8
    # The taker has an own record, and the record at the watermark is not among those that stay.
    fill(taker, 30, source=Source("its own"))
    fill(giver, 31)
    for side in (giver, taker):
        prune(side, plan(side, PruneRules(Selection(best=1, rest=0))))
    left = digests(taker)
    assert (giver.records.count(), len(left)) == (2, 2)
    fill(giver, 40)
    report = exchange(here, there_url)
    assert (report.new, report.read) == (2, 2)
    assert left < digests(taker)
    assert exchange(here, there_url).read == 0
    assert exchange(here, there_url, full=True).read == 3


def test_a_copy_with_fewer_records_hides_nothing_of_the_original(here, sqlite_file, tmp_path):
    """The copy has the same key, and the same record under its last number."""
    with Store(rename(sqlite_file, "f" * 32)) as there:
        fill(there, *range(6))
    copy = shutil.copyfile(sqlite_file, tmp_path / "copy.db")
    with Store(copy) as small:
        prune(small, plan(small, PruneRules(Selection(best=1, rest=0))))
    assert pull(here, copy).new == 2
    assert pull(here, sqlite_file).new == 4
    assert pull(here, sqlite_file).read == pull(here, copy).read == 0


def test_a_server_that_was_restored_after_a_pruning_is_noticed(here, there, there_url):
    fill(there, *range(4))
    prune(there, plan(there, PruneRules(Selection(best=1, rest=0))))
    fill(there, *range(10, 14))
    pull(here, there_url)
    forget(there_url, above=5)
    fill(there, *range(20, 24))
    assert pull(here, there_url).new == 4


def test_new_records_of_trusted_source_are_refused_until_accepted(here, there, there_url):
    fill(there, 1)
    pull(here, there_url)
    (source,) = here.sources.summaries()
    here.trust.set(source.id, Trust.VERIFIED)
    fill(there, 2)
    report = pull(here, there_url)
    assert (report.new, report.rejected) == (0, 1)
    assert pull(here, there_url).read == 0
    assert pull(here, there_url, accept_trusted_names=True).new == 1
    assert digests(here) == digests(there)
    assert pull(here, there_url, accept_trusted_names=True).read == 0


def test_push_is_accepted_only_for_own_sources(here, there, there_url, tmp_path):
    """A forged record that came here from a stranger gains no trust when it is pushed."""
    fill(here, 1)
    push(here, there_url)
    (mine,) = there.sources.summaries()
    there.trust.set(mine.id, Trust.VERIFIED)
    fill(here, 2)
    assert push(here, there_url).new == 1
    assert there.counts().measurements == 2
    assert {s.served for s in there.sources.summaries()} == {2}

    # A stranger forges a record of a source of the other side, and it is pulled here.
    stranger = rename(shutil.copyfile(here.location, tmp_path / "stranger.db"), there.key)
    fill(there, 5, source=Source("theirs"))
    with Store(stranger) as forger:
        fill(forger, 9, source=Source("theirs"))
    assert pull(here, stranger).new >= 1
    report = push(here, there_url)
    assert report.rejected >= 1
    assert make_measurement(9, (1e-2,)).digest not in {digest for _, digest in digests(there)}


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(limits, "BATCH_ROWS", 10)
    monkeypatch.setattr(limits, "IMPORT_ROWS", 10)


@pytest.mark.parametrize("exchange", [pull, push])
def test_second_exchange_completes_an_interrupted_one(
    here, there, there_url, small_batches, exchange
):
    giver, taker = (there, here) if exchange is pull else (here, there)
    fill(giver, *range(60))

    def stop(report):
        if report.read >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exchange(here, there_url, on_progress=stop)
    stored = taker.records.count()
    assert 0 < stored < 60
    rest = exchange(here, there_url)
    assert rest.new == 60 - stored
    assert rest.known <= 10
    assert digests(here) == digests(there)


@pytest.mark.parametrize("exchange", [pull, push])
def test_repeated_exchange_completes_after_cut_connections(
    here, postgres_server, postgres_url, small_batches, exchange
):
    with Store(postgres_url) as there:
        fill(there if exchange is pull else here, *range(60))
    cuts = 0
    for _ in range(20):
        done = []

        def cut(report, done=done):
            if report.read >= 30 and not done:
                done.append(postgres_server.terminate(postgres_url))

        try:
            exchange(here, postgres_url, on_progress=cut)
        except UnreachableError as error:
            assert "\n" not in str(error)
            cuts += 1
        else:
            break
    assert cuts
    assert digests(here) == digests(postgres_url)
    assert exchange(here, postgres_url).read == 0


def test_a_database_is_not_exchanged_with_itself(here, there, there_url):
    for exchange in (pull, push):
        with pytest.raises(UsageError, match="this is the database itself"):
            exchange(here, here.location)
        with pytest.raises(UsageError, match="this is the database itself"):
            exchange(there, there_url)
    with Store(":memory:") as store, pytest.raises(UsageError, match="in memory"):
        push(store, there_url)


@pytest.mark.parametrize("exchange", [pull, push])
def test_unreachable_server_raises_error_without_password(
    here, postgres_server, postgres_url, exchange
):
    fill(here, 1)
    url = make_url(postgres_url).set(password="hush").render_as_string(hide_password=False)
    with away(postgres_server, postgres_url), raises_line(UnreachableError) as caught:
        exchange(here, url)
    assert "hush" not in str(caught.value)
    assert exchange(here, url).rejected == 0


def test_pull_reads_older_schema_and_push_rejects_it(here, tmp_path):
    """The error of the push names the command that upgrades the database."""
    path = shutil.copyfile(FROZEN / "0003.db", tmp_path / "old.db")
    before = path.read_bytes()
    assert pull(here, path).read > 0
    with pytest.raises(SchemaError, match="tunedb db upgrade"):
        push(here, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("tables", "advice"), [(True, "tunedb db upgrade"), (False, "tunedb db init")]
)
def test_exchange_rejects_server_without_current_tables(here, bare_postgres_url, tables, advice):
    if tables:
        with Store(bare_postgres_url) as store, store._db.transaction() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0003'")
    fill(here, 1)
    for exchange in (pull, push):
        with pytest.raises(SchemaError, match=advice):
            exchange(here, bare_postgres_url)


@pytest.fixture
def account(postgres_server, postgres_url):
    """A function that makes an account with some rights and returns its URL."""
    made = []

    def account(name, *rights):
        postgres_server.execute(f"CREATE ROLE {name} LOGIN")
        made.append(name)
        url = make_url(postgres_url)
        for right in rights:
            postgres_server.execute_in(postgres_url, f"GRANT {right} TO {name}")
        return url.set(username=name).render_as_string(hide_password=False)

    yield account
    for name in made:
        postgres_server.execute_in(postgres_url, f"DROP OWNED BY {name}")
        postgres_server.execute(f"DROP ROLE {name}")


def test_pull_needs_read_and_push_needs_write_rights(here, postgres_url, account):
    """The error names the missing rights."""
    with Store(postgres_url) as there:
        fill(there, 1)
    fill(here, 2)
    nobody = account("nobody_here")
    reader = account("reader_here", "SELECT ON ALL TABLES IN SCHEMA public")
    for exchange in (pull, push):
        with raises_line(StorageError, match=r"SELECT.*permission denied for"):
            exchange(here, nobody)
    assert pull(here, reader).new == 1
    with pytest.raises(StorageError, match=r"INSERT and UPDATE.*permission denied for"):
        push(here, reader)
    with Store(postgres_url) as there:
        assert there.records.count() == 1
    assert push(here, postgres_url).new == 1


@pytest.mark.parametrize("exchange", [pull, push])
def test_exchange_of_equal_databases_needs_no_more_statements_if_they_grow(
    here, there, there_url, exchange, monkeypatch
):
    """benchmarks/sharing.py measures the time with a million records."""
    monkeypatch.setattr(limits, "BATCH_ROWS", 16)

    def statements(numbers):
        """Return the statements of an exchange after both have got the same records."""
        for store in (there, here):
            fill(store, *numbers)
        exchange(here, there_url)
        asked = []
        listener = (Engine, "before_cursor_execute", lambda *args: asked.append(args[2]))
        event.listen(*listener)
        try:
            assert exchange(here, there_url).total == 0
        finally:
            event.remove(*listener)
        return asked

    assert statements(range(5)) == statements(range(5, 5 + 3 * limits.BATCH_ROWS))
