"""Queries of a store, on SQLite and PostgreSQL."""

import random
from dataclasses import replace
from itertools import count, product
from operator import itemgetter

import pytest
from builders import (
    FOREIGN,
    OWN,
    add,
    make_graph,
    make_measurement,
    make_target,
    make_trace,
    make_workload,
)
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.errors import NotFoundError, SchemaError, UsageError
from tunedb.records import (
    NO_TARGET,
    Alias,
    Measurement,
    Program,
    Quarantined,
    Source,
    Status,
    Target,
    Trust,
    Workload,
)
from tunedb.results import Counts
from tunedb.run_times import NO_TIME, mean_of, status_of
from tunedb.storage import loader as reader
from tunedb.storage import read_statements, schema
from tunedb.storage import records as query_records
from tunedb.storage.names import AliasTrust
from tunedb.storage.store import Store

_fresh = count(1_000)


def ids_of(records):
    return [record.id for record in records]


rows = st.lists(
    st.fixed_dictionaries(
        {
            "workload": st.integers(0, 2),
            "target": st.integers(0, 1),
            "program": st.integers(0, 3),
            "occurrence": st.integers(0, 3),
            # Few values, so that there are many ties; sums of thirds, so that order matters.
            "secs": st.none()
            | st.lists(st.sampled_from([0.1, 0.2, 0.3, 1e-9, NO_TIME, 0.0, -0.0]), max_size=3),
            "empty": st.sampled_from([False, False, False, True]),
            "source": st.sampled_from(["own", "own", "verified", "foreign"]),
            "retract": st.sampled_from([False, False, False, True]),
            "commit": st.booleans(),
        }
    ),
    max_size=25,
)
SOURCES = {"own": OWN, "foreign": FOREIGN, "verified": Source("v", trust=Trust.VERIFIED)}


@settings(max_examples=examples(60))
@given(rows=rows, k=st.integers(0, 30), data=st.data())
def test_top_k_equals_a_sorted_list_of_served_records(store, rows, k, data):
    first = next(_fresh) * 10
    model, pending, ids = {}, [], {}

    def flush():
        for measurement, source in pending:
            (ids[measurement.digest],) = add(store, measurement, source=SOURCES[source])
        pending.clear()

    for row in rows:
        secs = None if row["secs"] is None else tuple(row["secs"])
        fields = {name: row[name] for name in ("target", "empty", "occurrence")}
        fields |= {"workload": first + row["workload"], "status": status_of(secs)}
        measurement = make_measurement(row["program"], secs, **fields)
        pending.append((measurement, row["source"]))
        if row["commit"]:
            flush()
        if measurement.digest not in model:
            is_served = measurement.is_valid and row["source"] != "foreign"
            mean = mean_of(secs) if secs else None
            model[measurement.digest] = row | {"served": is_served, "mean": mean}
        if row["retract"]:
            flush()
            store.trust.retract([ids[measurement.digest]], "model")
            model[measurement.digest]["served"] = False
    flush()

    workloads = data.draw(st.sets(st.integers(0, 2), min_size=1))
    targets = data.draw(st.none() | st.sets(st.integers(0, 1), min_size=1))
    by_age = [
        (entry["mean"], digest)
        for digest, entry in model.items()
        if entry["served"]
        and entry["workload"] in workloads
        and (targets is None or entry["target"] in targets)
    ]
    # Records of equal means keep their order.
    expected = sorted(by_age, key=itemgetter(0))
    found = [store.workloads.id_of(make_workload(first + w).digest) for w in workloads]
    workload_ids = [id_ for id_ in found if id_ is not None]
    target_ids = None
    if targets is not None:
        found = [store.targets.id_of(make_target(t).digest) for t in targets]
        target_ids = [id_ for id_ in found if id_ is not None]
    records = store.records.top_k(workload_ids, target_ids, k)
    assert [(r.mean, r.measurement.digest) for r in records] == expected[:k]
    best = store.records.best(workload_ids, target_ids)
    assert (best and best.measurement.digest) == (expected[0][1] if expected else None)
    course = store.records.history(workload_ids, target_ids)
    assert [mean for _, mean, _ in course] == [mean for mean, _ in by_age]
    if course:
        assert min(mean for _, mean, _ in course) == course[-1][2]


def test_top_k_returns_k_records_and_rejects_negative_k(store):
    ids = add(store, *(make_measurement(i, (0.1 * (i + 1),)) for i in range(12)))
    assert len(store.records.top_k([1])) == 10
    assert store.records.top_k([1], None, 0) == []
    assert store.answers.best_ids([1], [1], 3) == ids[:3]
    assert len(store.records.top_k([1], None, 2**62)) == 12
    with pytest.raises(UsageError, match="k must not be negative, got -1"):
        store.records.top_k([1], None, -1)
    assert store.records.top_k([], [1]) == store.records.top_k([1], []) == []
    assert store.records.top_k([99], [99]) == []


def test_ids_beyond_64_bits_find_nothing_or_are_rejected(store):
    add(store, make_measurement(0))
    for number, ask in product(
        [2**63, 2**70, -(2**70)],
        [store.records.get, store.workloads.get, lambda id_: store.records.top_k([id_], [1], 1)],
    ):
        try:
            assert ask(number) == []
        except (UsageError, NotFoundError) as error:
            assert "\n" not in str(error)


def rendered_top_k(store):
    """Return the SQL of the top-k query and its parameters, as the driver gets them."""
    connection = store._db.reader()
    sql, names, constants = read_statements.top_k._render(connection)
    values = {**constants, "workload": 1, "target": 1, "k": 10}
    return connection, sql, values if names is None else tuple(values[n] for n in names)


def fill(store):
    add(store, *(make_measurement(i, (0.1,), workload=i % 3, target=i % 2) for i in range(60)))
    add(store, *(make_measurement(i, None, workload=i % 3) for i in range(60)))


def test_queries_for_served_records_read_only_the_index_on_sqlite(sqlite_file):
    with Store(sqlite_file) as store:
        fill(store)
        connection, sql, values = rendered_top_k(store)

        def plan_of(sql, values):
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)
            return [row[3] for row in rows]

        plan = plan_of(sql, values)
        targets = plan_of(read_statements.served_targets._render(connection)[0], (1,))
    assert plan[0] == (
        "SEARCH measurement USING COVERING INDEX ix_measurement_top_k "
        "(workload_id=? AND target_id=?)"
    )
    # Of superseded records only those of programs that lost a final are read.
    assert sum("ix_measurement_lost (workload_id=? AND target_id=?)" in line for line in plan) == 2
    assert not any("SCAN measurement" in line for line in plan)
    assert any("COVERING INDEX ix_measurement_top_k" in line for line in targets)
    assert not any(line.startswith("SCAN measurement") for line in targets)


def test_top_k_reads_only_the_index_on_postgresql(postgres_url):
    with Store(postgres_url) as store:
        fill(store)
        connection, sql, values = rendered_top_k(store)
        connection.exec_driver_sql("VACUUM ANALYZE measurement")
        for setting in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
            connection.exec_driver_sql(f"SET {setting} = off")
        plan = "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {sql}", values))
    assert "Index Only Scan using ix_measurement_top_k" in plan
    assert "Sort" not in plan


def test_iterate_yields_records_in_order_and_applies_filters(store, monkeypatch):
    monkeypatch.setattr(query_records, "_PAGE", 4)
    batch = [make_measurement(i, (0.1,), workload=i % 2, target=i % 3) for i in range(12)]
    batch[5] = make_measurement(5, None, workload=1, target=2)
    ids = add(store, *batch)
    store.trust.retract([ids[2]], "x")
    iterate = store.records.iterate
    records = list(iterate())
    assert ids_of(records) == ids
    assert [r.measurement for r in records] == batch
    assert [r.retracted for r in records].index(True) == 2
    assert ids_of(iterate(2)) == ids[1::2]
    assert ids_of(iterate(target=[1, 3])) == sorted(ids[0::3] + ids[2::3])
    assert ids_of(iterate(1, [1])) == ids[0::6]
    assert list(iterate(99)) == list(iterate(1, [])) == []
    # Records that are added meanwhile come too.
    going_on = iterate()
    seen = [next(going_on).id]
    ids += add(store, make_measurement(20), make_measurement(21))
    assert seen + ids_of(going_on) == ids


def test_history_is_in_order_of_time(store):
    runs = [(0.3, 30), (0.5, 10), (0.4, 20), (0.6, 20), (0.9, 0)]
    made = [make_measurement(i, (s,), measured_at=t, target=i % 2) for i, (s, t) in enumerate(runs)]
    ids = add(store, *made, make_measurement(9, None, measured_at=1))
    course = [(4, 0.9, 0.9), (1, 0.5, 0.5), (2, 0.4, 0.4), (3, 0.6, 0.4), (0, 0.3, 0.3)]
    assert store.records.history([1]) == [(ids[n], mean, best) for n, mean, best in course]
    assert [row[0] for row in store.records.history([1], [2])] == [ids[1], ids[3]]
    assert store.records.history([]) == store.records.history([99]) == []


def test_counts_returns_numbers_of_rows_and_count_filters_by_workload(store):
    assert store.counts() == Counts(*[0] * 12)
    assert store.records.count() == store.names.last_workload() == 0
    assert store.workloads.find() == store.targets.find("llvm") == store.quarantine.rows() == []
    ids = add(
        store,
        make_measurement(0, (0.1,), workload=0),
        make_measurement(0, (0.2,), workload=0),
        make_measurement(1, None, workload=1, target=1),
    )
    store.trust.retract(ids[:1], "x")
    store.quarantine.add([Quarantined("f", 1, "r", b"")], FOREIGN)
    counts = store.counts()
    assert counts == Counts(
        **{"workloads": 2, "targets": 2, "sketches": 1, "tails": 1, "programs": 2},
        **{"measurements": 3, "failed": 1, "quarantined": 1, "retracted": 1},
        **{"sessions": 0, "sources": 2, "launches": 0},
    )
    assert all(type(getattr(counts, name)) is int for name in counts.__slots__)
    asked = (None, [1], [1, 2], [])
    assert [store.records.count(workloads) for workloads in asked] == [3, 2, 3, 0]


def test_workload_summaries_count_records_failures_and_targets(store):
    add(
        store,
        make_measurement(0, (0.3,), workload=0),
        make_measurement(1, (0.2,), workload=0, target=1),
        make_measurement(2, None, workload=0),
        make_measurement(3, None, workload=1),
    )
    add(store, make_measurement(4, (0.1,), workload=0), source=FOREIGN)
    store.workloads.add(make_workload(2, tvm_version="0.27"))
    one, two, three = store.workloads.find()
    assert (one.id, one.name, one.format) == (1, "matmul_0", "tvm-graph")
    assert (one.digest, three.tvm_version) == (make_workload(0).digest, "0.27")
    assert (one.records, one.failed, one.best, one.targets) == (4, 1, 0.2, 2)
    assert (two.records, two.failed, two.best, two.targets) == (1, 1, None, 1)
    assert (three.records, three.failed, three.best, three.targets) == (0, 0, None, 0)
    assert type(one.failed) is type(one.records) is type(one.targets) is int


def test_target_summaries_count_records_and_workloads(store):
    add(
        store,
        make_measurement(0, workload=0),
        make_measurement(0, workload=1),
        make_measurement(1, None, workload=1, target=1),
    )
    store.targets.add(NO_TARGET)
    summaries = store.targets.find()
    assert [(s.id, s.records, s.workloads) for s in summaries] == [(1, 2, 2), (2, 1, 1), (3, 0, 0)]
    assert [s.target for s in summaries] == [make_target(0), make_target(1), NO_TARGET]


def test_missing_rows_are_reported(store):
    for table in ("record", "workload", "target", "source", "session"):
        with pytest.raises(NotFoundError, match=f"no {table} 7") as caught:
            getattr(store, f"{table}s").get(7)
        assert str(caught.value).startswith(store.location)


def test_workloads_that_share_an_exact_alias_are_equivalent(store):
    exact = "tvm:0.27:structural"
    loose = [Alias("tvm:0.27:anchor-block", "a"), Alias("tvm:0.27:ignore-tensor", "a")]
    aliases = (
        [Alias(exact, "h1"), Alias("script", "s1")],
        [Alias(exact, "h1")],
        [Alias("script", "s1"), Alias(exact, "h3")],
        *(loose, loose),
    )
    same = [make_graph((8, 8), salt=n) for n in range(5)]
    one, two, three, four, five = map(store.workloads.add, same, aliases)
    equivalent = store.workloads.equivalent
    assert equivalent(one) == [one, two, three]
    assert [equivalent(id_) for id_ in (two, four, 99)] == [[one, two], [four], [99]]
    named = [(four, AliasTrust.TRUSTED), (five, AliasTrust.TRUSTED)]
    assert store.names.workloads([loose[0]]) == named
    assert store.names.workloads([Alias("script", "h1")]) == []
    pairs = zip(same, (0.3, 0.1, 0.2), strict=False)
    ids = add(store, *(make_measurement(0, (secs,), workload=w) for w, secs in pairs))
    assert ids_of(store.records.top_k(equivalent(one))) == [ids[1], ids[2], ids[0]]


def test_script_alias_needs_an_equal_structure_and_a_link_does_not(store):
    name, link = Alias("script", "s"), Alias("link", "x")
    equivalent = store.workloads.equivalent
    square = store.workloads.add(make_graph((256, 256)), [name, link])
    small = store.workloads.add(make_graph((64, 64)), [name])
    other_loops = store.workloads.add(make_graph((256, 256), extents=(256, 128)), [name])
    unreadable = store.workloads.add(make_workload(1), [name])
    assert equivalent(square) == [square]
    linked = store.workloads.add(make_workload(2), [link])
    assert equivalent(square) == equivalent(linked) == [square, linked]
    for alone in (small, other_loops, unreadable):
        assert equivalent(alone) == [alone]


def test_answers_targets_returns_served_ones_and_programs_targets_all(store):
    add(store, make_measurement(0, (0.1,), workload=0, target=0))
    add(store, make_measurement(0, None, workload=0, target=1))
    add(store, make_measurement(0, (0.1,), workload=1, target=2))
    add(store, make_measurement(0, (0.1,), workload=1, target=3), source=FOREIGN)
    asked = ([1], [1, 2], [])
    assert [store.answers.targets(ids) for ids in asked] == [[1], [1, 3], []]
    assert [store.programs.targets(ids) for ids in asked[:2]] == [[1, 2], [1, 2, 3, 4]]
    store.trust.retract([1], "x")
    assert store.answers.targets([1]) == []


def test_workloads_without_returns_served_workloads_that_lack_an_alias(store):
    for number, version in enumerate(["0.27.0", "0.27.1", "0.13.dev0", None]):
        add(store, make_measurement(0, workload=make_workload(number, tvm_version=version)))
    store.workloads.add(make_workload(9, tvm_version="0.27.0"))  # nothing to serve
    store.workloads.add(make_workload(1), [Alias("tvm:0.27:structural", "h")])
    assert store.names.workloads_without("tvm:0.27:structural", 0) == [1, 3, 4]
    assert store.names.workloads_without("tvm:0.27:structural", 1) == [3, 4]
    assert store.names.workloads_without("script", 0) == [1, 2, 3, 4]


def test_lookup_finds_workloads_by_id_name_or_digest(store):
    for number, name in enumerate(["matmul", "matmul_relu", "conv2d", "2"]):
        store.workloads.add(Workload("json", b"%d" % number, name))
    digests = [summary.digest.hex() for summary in store.workloads.find()]
    find = store.lookup.workloads
    assert find("matmul") == [1]  # an exact name before a part of one
    assert find("matmu") == [1, 2]
    assert find("2") == [2]  # an id before a name
    assert find("conv") == [3]
    assert find(digests[2][:4]) == find(digests[2]) == find(digests[2].upper()) == [3]
    assert find(digests[2][:3]) == []  # three letters are too few to mean a digest
    assert find("nothing") == []


def test_lookup_finds_targets_by_id_kind_label_or_json(store):
    cuda = Target.from_config({"kind": "cuda", "arch": "sm_90", "num-cores": 2})
    for target in (make_target(0), make_target(1), cuda, NO_TARGET):
        store.targets.add(target)
    find = store.lookup.targets
    assert find("llvm") == find("llvm skylake") == [1, 2]
    assert find("3") == find("cuda") == find('{"arch": "sm_90"}') == [3]
    assert find(' {"num-cores": 2}') == [2, 3]
    assert find('{"kind": "llvm", "num-cores": 2}') == find("llvm skylake 2 cores") == [2]
    assert find('{"kind": "rocm"}') == find("rocm") == []
    assert find("none") == [4]
    assert find("{}") == [1, 2, 3, 4]
    with pytest.raises(UsageError, match="is not JSON"):
        find('{"kind": ')


def test_compatible_returns_targets_of_the_same_kind_and_architecture(store):
    skylake = {"kind": "llvm", "mcpu": "skylake"}
    others = ({"kind": "llvm", "mcpu": "znver4"}, skylake | {"kind": "c"}, {"kind": "llvm"})
    configs = (skylake, skylake | {"num-cores": 8}, *others)
    ids = [store.targets.add(Target.from_config(config)) for config in configs]
    assert store.targets.compatible(Target.from_config(skylake | {"opt-level": 3})) == ids[:2]
    assert store.targets.compatible(Target.from_config({"kind": "llvm"})) == ids[4:]


def test_meta_has_the_store_key_without_which_a_database_is_rejected(store, store_url):
    meta = store.meta()
    assert meta.keys() == {"format", "store", "created_by", "created_at"}
    assert (meta["format"], meta["store"], len(store.key)) == ("tunedb", store.key, 32)
    assert int(meta["created_at"]) > 1_600_000_000_000_000
    with store._db.transaction() as connection:
        connection.execute(schema.meta.delete().where(schema.meta.c.key == "store"))
    with pytest.raises(SchemaError, match="it has no store key"):
        Store(store_url)


@pytest.mark.parametrize("moment", range(1, 6))
def test_another_thread_may_empty_the_cache_at_any_moment(moment):
    cache = reader.Cache(2)
    looks = count(1)

    class Key(int):
        def __hash__(self):
            if next(looks) == moment:
                cache.clear()  # as another thread may do between two of our steps
            return int.__hash__(self)

    cache.fetch(7, str)
    assert cache.fetch(Key(7), lambda key: str(int(key))) == "7"


def test_records_stay_complete_when_caches_overflow(store):
    """The records have more workloads, sketches and tails than the caches keep."""
    batch = []
    for i in range(reader._CACHE_WORKLOADS + 10):
        trace = replace(make_trace(), sketch=b'[["GetBlock",[],[%d]]]' % i, tail=b"[[%d]]" % i)
        batch.append(Measurement(Program(make_workload(i), make_target(), trace), (0.1,)))
    ids = add(store, *batch)
    random.Random(1).shuffle(ids)
    for id_ in ids:
        measurement = store.records.get(id_).measurement
        assert (measurement, measurement.status) == (batch[id_ - 1], Status.OK)


def test_server_database_is_analyzed_after_1000_added_rows(postgres_url):
    def analyses():
        counts = store._db.plain("SELECT analyze_count FROM pg_stat_user_tables")
        return sum(row[0] for row in counts)

    with Store(postgres_url) as store:
        before = analyses()
        add(store, *(make_measurement(i) for i in range(999)))
        assert analyses() == before
        add(store, make_measurement(999))
        after = analyses()
        assert after > before
        rows = store._db.plain("SELECT reltuples FROM pg_class WHERE relname = 'measurement'")
        assert [row[0] for row in rows] == [1_000]
        add(store, *(make_measurement(i) for i in range(1_000, 1_500)))
        assert analyses() == after


def test_transaction_succeeds_while_another_session_blocks_analyze(postgres_url, monkeypatch):
    monkeypatch.setenv("TUNEDB_TIMEOUT", "0.4")
    with Store(postgres_url) as other, Store(postgres_url) as store:
        for statement in ("BEGIN", "LOCK TABLE measurement IN SHARE UPDATE EXCLUSIVE MODE"):
            other._db.reader().exec_driver_sql(statement)
        assert len(add(store, *(make_measurement(i) for i in range(1_000)))) == 1_000
