"""Records that a selection chooses from a database, and from a stream of chunks."""

import math
import random
import tracemalloc
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from types import SimpleNamespace

import pytest
from builders import add, make_measurement, make_session, make_target, make_workload, sql
from effort import examples
from gathering import digests, gather
from hypothesis import given, settings
from hypothesis import strategies as st
from test_column_codec import rows_of

from tunedb import limits
from tunedb.errors import LimitError, NotFoundError, StorageError
from tunedb.exchange import selection as choosing
from tunedb.exchange.database_peer import DatabasePeer
from tunedb.exchange.selection import Ranks, chosen_ids, filtered
from tunedb.records import Alias, Failure, FailureKind, Phase, Source, Status, Target
from tunedb.run_times import mean_of
from tunedb.storage.exchange_types import COLUMNS, EVERYTHING, Chunk, Selection
from tunedb.storage.lookup import target_labels
from tunedb.storage.store import Store
from tunedb.storage.superseded import extra_of_final

NAMES = ("own", "other")


def chosen_by_reference(records, selection):
    """Return the digests of the chosen measurements; `records` are pairs with a source."""
    groups = {}
    for measurement, source in records:
        program = measurement.program
        if (
            (not selection.workloads or program.workload.name in selection.workloads)
            and (not selection.targets or program.target.label in selection.targets)
            and (not selection.sources or source in selection.sources)
            and (not selection.since or measurement.measured_at >= selection.since)
        ):
            key = (program.workload.digest, program.target.digest)
            groups.setdefault(key, []).append(measurement)
    if selection.best is None:
        return {m.digest for group in groups.values() for m in group}
    chosen = set()
    for group in groups.values():
        valid = [m for m in group if m.status is Status.OK]
        valid.sort(key=lambda m: (mean_of(m.run_secs), m.digest))
        failed = sorted((m for m in group if m.status is not Status.OK), key=lambda m: m.digest)
        best, left = valid[: selection.best], valid[selection.best :] + failed
        count = min(len(left), math.floor(selection.best * selection.rest + 0.5))
        middles = [left[(2 * i + 1) * len(left) // (2 * count)] for i in range(count)]
        assert len({m.digest for m in middles}) == count
        chosen.update(m.digest for m in best + middles)
    return chosen


TARGETS = [make_target(0), Target.from_config({"kind": "cuda", "arch": "sm_90"})]
record = st.tuples(
    st.builds(
        make_measurement,
        st.integers(0, 30),
        st.sampled_from([None, (0.25,), (0.5, 1.0), (0.125,), (0.75, 0.75)]),
        workload=st.integers(0, 2),
        target=st.sampled_from(TARGETS),
        measured_at=st.sampled_from([0, 5, 10]),
    ),
    st.sampled_from(NAMES),
)
selection = st.builds(
    Selection,
    st.sampled_from([(), ("matmul_0",), ("matmul_1", "matmul_2")]),
    st.sampled_from([(), ("llvm skylake",), ("cuda sm_90",)]),
    st.sampled_from([(), ("own",), NAMES]),
    st.sampled_from([0, 5, 11]),
    st.sampled_from([None, 1, 2, 5]),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)


def chunks_of(tables):
    """Return chunks of tables with any values that a bundle can hold."""
    return st.tuples(*(rows_of(table).map(partial(Chunk, table)) for table in tables)).map(list)


def fill(path, records):
    """Put records into a new store; return them as they are stored."""
    stored = {}
    with Store(path) as store:
        # Every name in a selection exists.
        first = [(make_measurement(99, (9.0,), workload=w), "own") for w in range(3)]
        first.append((make_measurement(98, (8.0,), target=TARGETS[1]), "other"))
        for source, pairs in groupby(first + records, key=itemgetter(1)):
            batch = [measurement for measurement, _ in pairs]
            store.records.add(batch, Source(source))
            for measurement in batch:
                stored.setdefault(measurement.digest, (measurement, source))
    return list(stored.values())


def undigested(peer):
    """Return the chunks of a peer without the digests that bundles leave out."""
    bare = []
    for chunk in peer.chunks(EVERYTHING):
        hidden = set() if chunk.table == "retraction" else {"digest", "program_digest"}
        names = COLUMNS[chunk.table]
        rows = [
            tuple(None if n in hidden else v for n, v in zip(names, row, strict=True))
            for row in chunk.rows
        ]
        bare.append(Chunk(chunk.table, rows))
    return bare


def of_stream(chunks, selection):
    """Return the rows that a selection leaves of chunks."""
    peer = SimpleNamespace(chunks=lambda given, **_: filtered(lambda: iter(chunks), given))
    return gather(peer, selection)


@settings(max_examples=examples(60))
@given(records=st.lists(record, max_size=25), selection=selection)
def test_database_and_stream_choose_the_same_records_as_the_reference(
    tmp_path_factory, sqlite_template, records, selection
):
    path = tmp_path_factory.mktemp("choosing") / "store.db"
    path.write_bytes(sqlite_template.read_bytes())
    expected = chosen_by_reference(fill(path, records), selection)
    with DatabasePeer(path) as peer:
        found = gather(peer, selection)
        of_chunks = of_stream(undigested(peer), selection)
    assert digests(found) == digests(of_chunks) == expected
    for table in ("workload", "target", "source", "sketch", "tail"):
        assert len(of_chunks[table]) == len(found[table]), table
    with Store(path, create=False) as store:
        ids = chosen_ids(store, selection)
        assert len(ids) == len(expected)
        assert sorted(ids) == ids.tolist()


def test_server_chooses_the_same_records_as_the_reference(store_url):
    random_ = random.Random(3)
    records = []
    for n in range(60):
        secs = None if n % 5 == 0 else (random_.choice([0.25, 0.5, 1.0, 2.0]),)
        fields = {"workload": n % 2, "target": TARGETS[n % 2], "measured_at": n}
        records.append((make_measurement(n, secs, **fields), NAMES[n % 3 == 0]))
    stored = fill(store_url, records)
    with DatabasePeer(store_url) as peer:
        for selection in (
            Selection(best=3),
            Selection(best=4, rest=0.5, sources=("other",)),
            Selection(workloads=("matmul_1",), since=10),
            Selection(targets=("cuda sm_90",), best=1, rest=10.0),
        ):
            assert digests(gather(peer, selection)) == chosen_by_reference(stored, selection)


def test_superseded_records_are_not_among_the_best(sqlite_file):
    """Without the record of the final, the lucky one would rank first in another database."""
    lucky = make_measurement(0, (0.1,), session=make_session(), measured_at=1)
    lost = replace(lucky, run_secs=(0.5,), measured_at=2, extra=extra_of_final(None, won=False))
    with Store(sqlite_file) as store:
        lucky_id, lost_id, best_id, strange_id = add(
            store, lucky, lost, make_measurement(1, (0.2,)), make_measurement(2, (0.6,))
        )
        assert chosen_ids(store, Selection(best=1, rest=0.0)).tolist() == [best_id]
        everything = Selection(best=9, rest=9.0)
        assert chosen_ids(store, everything).tolist() == [lost_id, best_id, strange_id]
        assert lucky_id in chosen_ids(store, EVERYTHING)
    with DatabasePeer(sqlite_file) as peer:
        chunks = undigested(peer)
        expected = digests(gather(peer, everything))
    assert digests(of_stream(chunks, everything)) == expected
    assert lucky.digest not in expected
    # The fingerprint of a foreign session may be invalid.
    hidden = [
        Chunk(c.table, [(*row[:-1], "{") for row in c.rows]) if c.table == "session" else c
        for c in chunks
    ]
    kept = filtered(lambda: iter(hidden), everything)
    assert sum(len(c.rows) for c in kept if c.table == "measurement") == 4


def test_stream_keeps_only_failures_of_selected_measurements(sqlite_file):
    failure = Failure(FailureKind.TIMEOUT, Phase.RUN, "x")
    with Store(sqlite_file) as store:
        add(store, *(make_measurement(w, None, workload=w, failure=failure) for w in range(2)))
        store.trust.retract([1], "x")
    with DatabasePeer(sqlite_file) as peer:
        found = of_stream(undigested(peer), Selection(workloads=("matmul_1",)))
    assert [row["measurement"] for row in found["failure"]] == [2]
    assert len(found["retraction"]) == len(found["workload"]) == 1


@pytest.fixture
def named(sqlite_file):
    """Workloads called matmul, batch_matmul and conv, one of them twice under an alias."""
    aliases = [Alias("tvm:0.27:anchor-block", "same")] * 2 + [Alias("script", "same")] * 2
    names = ("matmul", "batch_matmul", "conv", "conv_again", "two", "two")
    with Store(sqlite_file) as store:
        for number, name in enumerate(names):
            workload = make_workload(number, name=name)
            add(store, make_measurement(number, (1.0,), workload=workload))
            store.workloads.add(workload, aliases[number : number + 1])
    return sqlite_file


def test_names_and_digests_select_workloads(named):
    digest = make_workload(1).digest.hex()
    with DatabasePeer(named) as peer:
        chunks = undigested(peer)
        for words, numbers in (
            (("matmul",), {0}),
            (("atmul",), {0, 1}),
            (("batch",), {1}),
            (("conv",), {2, 3}),
            (("conv_again", "matmul"), {0, 2, 3}),
            (("two",), {4, 5}),
            ((digest[:8],), {1}),
            ((digest.upper(),), {1}),
        ):
            selection = Selection(workloads=words)
            for found in (gather(peer, selection), of_stream(chunks, selection)):
                assert {row["id"] - 1 for row in found["workload"]} == numbers, words


def test_unknown_names_are_refused(named):
    with Store(named) as store:
        for number in range(10, 20):
            workload = make_workload(number, name=f"w{number}\x1b[2J")
            add(store, make_measurement(0, (1.0,), workload=workload))
    with DatabasePeer(named) as peer:
        chunks = undigested(peer)
        for selection, match in (
            (
                Selection(workloads=("matmul", "softmax")),
                # At most 8 names, which are escaped.
                "no workload 'softmax' there; there are: matmul, batch_matmul, conv, conv_again, "
                r"two, w10\\x1b\[2J, w11\\x1b\[2J, w12\\x1b\[2J and more$",
            ),
            (Selection(workloads=("abc",)), "no workload 'abc'"),
            (Selection(targets=("cuda",)), "no target 'cuda' there; there are: llvm skylake"),
            (Selection(sources=("ow",)), "no source 'ow' there; nearest: own; there are: own"),
        ):
            for give in (peer.chunks, partial(of_stream, chunks)):
                with pytest.raises(NotFoundError, match=match):
                    list(give(selection))


def test_target_labels_ignores_invalid_configurations():
    config = '{"kind":"llvm","mcpu":"skylake","num-cores":4}'
    assert target_labels("llvm", config) == (
        ["llvm skylake 4 cores", "llvm skylake", "llvm"],
        {"kind": "llvm", "mcpu": "skylake", "num-cores": 4},
    )
    deep = "[" * 10_000
    for junk in (None, 7, "x", "[]", "null", deep, '"\udcff"', "1" * limits.MAX_TARGET_CHARS * 2):
        assert target_labels("llvm", junk) == (["llvm"], None)
    assert target_labels(None, config) == ([], None)


@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1).flatmap(chunks_of))
def test_filtered_accepts_any_rows(chunks):
    """The verification follows, and reports what is wrong with which row."""
    for selection in (Selection(best=2), Selection(since=5), Selection(best=1, since=1)):
        kept = list(filtered(lambda: iter(chunks), selection))
        assert all(isinstance(chunk, Chunk) for chunk in kept)
    with pytest.raises(NotFoundError):
        list(filtered(lambda: iter(chunks), Selection(workloads=("no such workload is there",))))


def test_a_stream_of_long_texts_takes_little_memory():
    """The texts are part of digests, which order equal times; a stream may have any number."""

    def chunks():
        for start in range(0, 1_500, 50):
            rows = [(n, None, f'"{n:065000}"') for n in range(start, start + 50)]
            yield Chunk("args_info", rows)

    tracemalloc.start()
    try:
        kept = list(filtered(chunks, Selection(best=1)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept == []
    assert peak < 80 * 2**20, "of 93 MB"


def test_filtered_rejects_too_many_shared_rows(monkeypatch):
    monkeypatch.setattr(choosing, "_MAX_SHARED", 9)
    chunks = [Chunk("sketch", [(n, None, b"[]") for n in range(10)])]
    with pytest.raises(LimitError, match="more than 9 workloads, sketches and similar rows"):
        list(filtered(lambda: iter(chunks), Selection(best=1)))


def test_selection_of_best_rejects_invalid_digest(sqlite_file):
    with Store(sqlite_file) as store:
        add(store, make_measurement(0))
    sql(sqlite_file, "UPDATE measurement SET digest = x'00'")
    with DatabasePeer(sqlite_file) as peer, pytest.raises(StorageError, match="cannot be compared"):
        list(peer.chunks(Selection(best=1)))


def test_ranks_accepts_best_and_rest_beyond_all_records():
    for best, rest in ((10**400, 1.0), (10**400, 0.0), (3, 1e308)):
        ranks = Ranks()
        ranks.add([1, 2, 3], [(1, 1)] * 3, [0] * 3, [1.0, 2.0, 3.0], [bytes(16)] * 3)
        assert ranks.chosen(best, rest).tolist() == [1, 2, 3]


def test_ranks_take_little_memory():
    """They take less than 64 bytes for a record, sorting included."""
    count, page = 100_000, 10_000
    digests_ = [n.to_bytes(16, "big") for n in range(page)]
    tracemalloc.start()
    ranks = Ranks()
    for start in range(0, count, page):
        ids = range(start, start + page)
        ranks.add(ids, [(1, n % 7) for n in ids], [0] * page, [1.0] * page, digests_)
    before = tracemalloc.get_traced_memory()[1]
    chosen = ranks.chosen(10, 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(chosen) == 7 * 20
    assert max(before, peak) < 64 * count + 4 * 2**20


def test_chosen_ids_do_not_depend_on_page_size(sqlite_file, monkeypatch):
    """A scan goes page by page, also where a page ends with the last row."""
    with Store(sqlite_file) as store:
        add(store, *(make_measurement(n, (1.0 + n,)) for n in range(12)))
        for size in (1, 4, 5, 12, 13):
            monkeypatch.setattr(choosing, "_PAGE", size)
            assert chosen_ids(store, Selection(best=2, rest=0.0)).tolist() == [1, 2]
            assert len(chosen_ids(store, Selection(since=0))) == 12
            assert chosen_ids(store, Selection(best=1, rest=0.0), until=0).tolist() == []
