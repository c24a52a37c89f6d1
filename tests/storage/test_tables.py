"""Tables: pandas, polars, DuckDB and pyarrow read what the database contains."""

import json
import sys

import duckdb
import numpy as np
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from builders import FOREIGN, OWN, make_measurement, make_target, make_workload
from every_kind import measurements
from fake_sets import Steps
from hypothesis import given
from hypothesis import strategies as st
from raising import raises_line

from tunedb.errors import NotFoundError, StorageError, UsageError
from tunedb.launches import CounterSet, Launch
from tunedb.records import Measurement, Program, Trace, Trust
from tunedb.storage import tables
from tunedb.storage._lists import (
    FIRST,
    LIST,
    PACKED,
    hex_texts,
    join_bytes,
    name_texts,
    pack_numbers,
    split_lists,
    transpose,
)
from tunedb.storage.store import Store

#: The public contract (docs/tables.md): type of Arrow by type of a column.
ARROW = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "time": pa.timestamp("us", "UTC"),
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "floats": pa.list_(pa.float64()),
    "vector": pa.list_(pa.float32(), 2),
}
FROM_VIEWS = ("best", "failures", "tasks", "sessions", "launches", "records")


@pytest.fixture
def store(store_url):
    with Store(store_url) as store:
        store.records.add(measurements(), OWN)
        store.trust.retract([5], "throttled")
        counters = CounterSet("ncu", "1", "8.0", (("warps", "%"), ("x", "")))
        evil = Launch("evil", 1, counter_set=counters, values=(0.5, float("nan")))
        store.records.add([make_measurement(9, (1e-9,), workload=1, launches=(evil,))], FOREIGN)
        store.features.add(Steps(), [(1, np.array([[1, 2], [3, 4]])), (2, np.ones((1, 2)))])
        yield store


def rows_of(table):
    return pa.table(table).to_pylist()


def test_columns_have_the_documented_types(store):
    for name, columns in tables.COLUMNS.items():
        table = store.table(name)
        read = pa.table(table)
        read.validate(full=True)
        assert len(read) == len(table) > 0, name
        assert read.schema.names == [column.name for column in table.columns]
        for field, column in zip(read.schema, columns, strict=True):
            assert field.type.equals(ARROW[column.type]), field
            assert bool(column.unit) == field.name.endswith(("seconds", "bytes", "flops")), field


def test_tables_agree_with_their_sql_views(store):
    for name in FROM_VIEWS:
        ours, theirs = both_rows(store, name)
        assert ours == theirs, name


def both_rows(store, name):
    """Return the rows of a table and those of its view, sorted; their columns are compared."""
    columns = tables.COLUMNS[name]
    view = [row._mapping for row in store._db.plain(f"SELECT * FROM v_{name}")]
    theirs = set(view[0]) - {"repeats"}
    assert theirs == {column.name for column in columns if not column.source} - {"run_seconds"}
    plain = [
        column.name
        for column in columns
        if column.type in ("int", "float", "bool", "text") and column.name in theirs
    ]

    def comparable(row):
        values = [row[column] for column in plain]
        return [json.loads(v) if isinstance(v, str) and v[:1] == "[" else v for v in values]

    key = plain.index("session_id") if name == "sessions" else 0
    found = rows_of(store.table(name)), view
    return [sorted(sorted(map(comparable, rows)), key=lambda row: repr(row[key])) for rows in found]


def test_records_table_has_times_and_decisions(store):
    rows = rows_of(store.table("records"))
    for row, record in zip(rows, store.records.iterate(), strict=True):
        measured, at = record.measurement, row["measured_at"]
        assert row["run_seconds"] == (None if measured.run_secs is None else [*measured.run_secs])
        assert measured.measured_at == (0 if at is None else pd.Timestamp(at).value // 1000)
    assert [row["decisions"] for row in rows[:2]] == [["[2,[0,4]]"], ["[2,[1,4]]"]]
    assert [row["decisions"] for row in rows[5:7]] == [["64", "300", "0"], []]


def test_pandas_polars_and_duckdb_agree_with_sql(store):
    ((count, total, best),) = store._db.plain(
        "SELECT count(*), sum(mean_seconds), min(mean_seconds) FROM v_records WHERE served"
    )
    expected = (count, pytest.approx(total), best)
    records = store.table("records")
    frame = records.to_pandas()
    frame = frame[frame.served].mean_seconds
    assert (len(frame), frame.sum(), frame.min()) == expected
    columns = records.to_polars().filter(pl.col("served"))["mean_seconds"]
    assert (len(columns), columns.sum(), columns.min()) == expected
    duck = duckdb.sql(
        "SELECT count(*), sum(mean_seconds), min(mean_seconds) FROM records WHERE served"
    )
    assert duck.fetchall() == [expected]
    # A second reader gets all rows again.
    assert duckdb.sql("SELECT len(run_seconds) FROM records").fetchall()[0] == (2,)
    assert records.to_polars()["run_seconds"].list.sum()[0] == 0.75


def test_features_table_has_vectors_or_wide_columns_and_marks_merged_rows(store):
    rows = rows_of(store.table("features", feature_set=Steps().name))
    assert [(row["program_id"], row["row"], row["features"]) for row in rows] == [
        *((1, 0, [1, 2]), (1, 1, [3, 4]), (2, 0, [1, 1])),
    ]
    assert store.table("features").to_polars()["features"].arr.sum().to_list() == [3, 7, 2]
    wide = store.table("features", wide=True).to_polars()
    names = [f"features.{name}" for name in Steps().columns]
    assert wide.columns[-2:] == names
    assert wide.schema[names[0]] == pl.Float32
    assert wide.select(names).rows() == [(1, 2), (3, 4), (1, 1)]
    assert {(row["merged"], row["trust"]) for row in rows} == {(False, "own")}
    with store._db.transaction() as connection:
        connection.exec_driver_sql(
            "INSERT INTO foreign_feature SELECT program_id, feature_set_id, source.id "
            "FROM feature, source WHERE program_id = 2 AND trust = 0"
        )
    # A merged row of a program that a trusted source has measured is not usable.
    assert len(store.table("features")) == 2
    for source in store.sources.summaries():
        store.trust.set(source.id, Trust.FOREIGN)
    rows = [(row["merged"], row["trust"]) for row in rows_of(store.table("features"))]
    assert rows == [(False, "own"), (False, "own"), (True, "foreign")]


def test_launches_table_has_counters_and_values(store):
    gemm, evil = rows_of(store.table("launches"))
    assert (gemm["counters"], gemm["values"]) == (['["warps","%"]'], [50.0])
    assert (evil["trust"], evil["counters"]) == ("foreign", ['["warps","%"]', '["x",""]'])
    assert np.array_equal(evil["values"], [0.5, np.nan], equal_nan=True)


def test_tables_filter_by_workload_and_target(store):
    target = store.targets.id_of(make_target().digest)
    for name in ("records", "best", "failures", "tasks", "features", "launches"):
        everything = rows_of(store.table(name))
        for workload in (1, 2):
            chosen = rows_of(store.table(name, workload, target))
            of_workload = [row for row in everything if row["workload_id"] == workload]
            assert repr(chosen) == repr(of_workload), name
        assert len(store.table(name, [], [])) == 0
        with pytest.raises(NotFoundError, match="no workload 'conv2d'"):
            store.table(name, "conv2d")


def test_workloads_table_includes_workloads_without_records(store):
    store.workloads.add(make_workload(7, name="nobody"))
    rows = rows_of(store.table("workloads"))
    assert [(row["workload"], row["records"], row["targets"]) for row in rows] == [
        *(("matmul_1", 7, 1), ("matmul", 2, 1), ("nobody", 0, 0)),
    ]
    assert rows_of(store.table("workloads", "nobody")) == rows[2:]


def test_tables_read_in_small_pages_are_the_same(store, monkeypatch):
    expected = {name: rows_of(store.table(name)) for name in tables.COLUMNS}
    monkeypatch.setattr(tables, "_ROWS", 2)
    monkeypatch.setattr(tables, "_PROGRAMS", 1)
    assert repr({name: rows_of(store.table(name)) for name in tables.COLUMNS}) == repr(expected)


def test_rows_added_while_a_table_is_read_have_workload_names(store, monkeypatch):
    monkeypatch.setattr(tables, "_ROWS", 4)
    pages = store._tables._pages

    def slow(*arguments):
        for number, page in enumerate(pages(*arguments)):
            yield page
            if not number:
                store.records.add([make_measurement(0, workload=50, target=50)], OWN)

    monkeypatch.setattr(store._tables, "_pages", slow)
    assert rows_of(store.table("records"))[-1]["workload"] == "matmul_50"


def test_tables_of_empty_database_have_no_rows(sqlite_file):
    with Store(sqlite_file) as store:
        for name in set(tables.COLUMNS) - {"features"}:
            table = store.table(name)
            assert (len(table), len(pa.table(table)), len(table.to_polars())) == (0, 0, 0)
        with raises_line(NotFoundError, match="no features; run: tunedb extract"):
            store.table("features")


def test_table_rejects_wrong_arguments_and_damaged_features(store):
    for arguments, options, message in (
        (("trials",), {}, "no table 'trials'; there are: records, best, "),
        (("records",), {"feature_set": "x"}, "table records has no features"),
        (("best",), {"wide": True}, "table best has no features"),
        (("sessions", 1), {}, "a session is of no single workload"),
        (("workloads", None, 1), {}, "read the table tasks"),
    ):
        with raises_line(UsageError, match=message):
            store.table(*arguments, **options)
    with raises_line(NotFoundError, match="no features 'x'; there are: fake.steps"):
        store.table("features", feature_set="x")
    with store._db.transaction() as connection:
        connection.exec_driver_sql("UPDATE feature SET n_columns = 3 WHERE program_id = 2")
    with raises_line(StorageError, match="do not have 2 columns"):
        store.table("features")


def test_conversion_without_its_package_names_the_pip_command(store, monkeypatch):
    table = store.table("records")
    for module, convert in (("pyarrow", table.to_pandas), ("polars", table.to_polars)):
        monkeypatch.setitem(sys.modules, module, None)
        with raises_line(UsageError, match="run: pip install "):
            convert()


def test_damaged_values_break_no_table(store):
    is_file = store._db.engine.dialect.name == "sqlite"
    bad = "x'ff5b'" if is_file else "'\\xff5b'"
    fingerprint = '{"cores":18446744073709551615,"threads":-5}'
    with store._db.transaction() as connection:
        for change in (
            f"program SET decisions = {bad} WHERE id = 1",
            "measurement SET origin = 'dreamt' WHERE id = 2",
            # The guards of a server keep such times out.
            *([f"measurement SET run_secs = {bad} WHERE id = 3"] if is_file else []),
            f"measurement SET digest = {bad} WHERE id = 4",
            f"session SET fingerprint = '{fingerprint}'",
        ):
            connection.exec_driver_sql(f"UPDATE {change}")
    (session,) = rows_of(store.table("sessions"))
    rows = rows_of(store.table("records"))
    assert session["cores"] is None
    assert [row["decisions"] for row in rows[:2]] == [None, ["[2,[1,4]]"]]
    assert (rows[1]["origin"], rows[3]["digest"]) == ("unknown", "ff5b")
    assert (rows[0]["run_seconds"], rows[2]["run_seconds"]) == ([0.5, 0.25], None)


# ---- The compiled kernel -------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**63 - 1)
    | st.text('ab[]{},"\\é ', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


def varint(number):
    """Return a number as unsigned LEB128."""
    parts = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([part | 128 for part in parts[:-1]] + parts[-1:])


def split(rows, kinds):
    """Return the result of ``split_lists`` as lists of texts."""
    counts, lengths, data = split_lists(rows, bytes(kinds))
    sizes, lists, at = iter(np.frombuffer(lengths, np.int64).tolist()), [], 0
    for count in np.frombuffer(counts, np.int64).tolist():
        elements = []
        for _ in range(max(count, 0)):
            size = next(sizes)
            elements.append(data[at : at + size])
            at += size
        lists.append(None if count < 0 else elements)
    assert at == len(data)
    return lists


@given(st.lists(st.tuples(st.sampled_from([LIST, FIRST, PACKED]), st.lists(VALUES, max_size=4))))
def test_split_lists_returns_the_elements_of_json_and_packed_lists(cases):
    rows, expected = [], []
    for kind, values in cases:
        if kind == PACKED:
            numbers = [value for value in values if type(value) is int and value >= 0]
            rows.append(b"".join(map(varint, numbers)))
            expected.append([b"%d" % number for number in numbers])
        else:
            rows.append(orjson.dumps([values, 1] if kind == FIRST else values))
            expected.append([orjson.dumps(value) for value in values])
    assert split(rows, [kind for kind, _ in cases]) == expected


@given(st.lists(st.tuples(st.sampled_from([LIST, FIRST, PACKED]), st.none() | st.binary())))
def test_split_lists_accepts_any_bytes(cases):
    lists = split([row for _, row in cases], [kind for kind, _ in cases])
    assert len(lists) == len(cases)
    rows = [b"", None, b"{}", b"[1", b'["\\', b"\x80", b"\xff" * 20]
    assert split(rows, [LIST] * 5 + [PACKED] * 2) == [None] * 7


def test_split_lists_returns_none_for_invalid_utf8_and_numbers_beyond_int64():
    """Readers of Arrow do not check texts, and parts of two rows could together be valid UTF-8."""
    rows = [b'["\xc3"]', b'["\xa9"]', '["é"]'.encode(), b'[["\xff"],1]', b'[["a"],"\xff"]']
    assert split(rows, [LIST] * 3 + [FIRST] * 2) == [None, None, ['"é"'.encode()], None, None]
    numbers = [b"\xff" * 8 + b"\x7f", b"\xff" * 9 + b"\x01"]
    assert split(numbers, [PACKED] * 2) == [[b"%d" % (2**63 - 1)], None]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_pack_numbers_returns_integers_and_validity_bits(values):
    numbers, bits = pack_numbers(values, is_float=False)
    assert np.frombuffer(numbers, np.int64).tolist() == [value or 0 for value in values]
    assert valid(bits, len(values)) == [value is not None for value in values]


@given(st.lists(st.none() | st.floats()))
def test_pack_numbers_returns_floats_and_validity_bits(values):
    numbers, bits = pack_numbers(values, is_float=True)
    assert numbers == np.array([0 if value is None else value for value in values], float).tobytes()
    assert valid(bits, len(values)) == [value is not None for value in values]


@given(st.integers(0, 4), st.data())
def test_transpose_converts_rows_to_columns_without_leaking_references(columns, data):
    row = st.lists(st.none() | st.integers() | st.binary(), min_size=columns, max_size=columns)
    rows = data.draw(st.lists(row.map(tuple) | row))
    expected = [*zip(*rows, strict=True)] if rows else [()] * columns
    assert transpose(rows, columns) == expected
    before = sys.getrefcount(expected)
    for _ in range(3):
        transpose([(expected,)], 1)
    assert sys.getrefcount(expected) == before


def test_transpose_rejects_rows_of_another_length():
    for row in ((), (1,), (1, 2, 3)):
        with pytest.raises(ValueError, match=rf"row 1 has {len(row)} values, not 2"):
            transpose([(1, 2), row], 2)


@given(st.lists(st.none() | st.binary()))
def test_join_bytes_returns_lengths_validity_bits_and_data(values):
    lengths, bits, data = join_bytes(values)
    assert np.frombuffer(lengths, np.int64).tolist() == [len(value or b"") for value in values]
    assert valid(bits, len(values)) == [value is not None for value in values]
    assert data == b"".join(value or b"" for value in values)
    with pytest.raises(TypeError):
        join_bytes(["text"])


@given(st.lists(st.binary(min_size=3, max_size=3)), st.binary().filter(lambda b: len(b) != 3))
def test_hex_texts_converts_digests_of_equal_length_only(digests, other):
    assert hex_texts(digests, 3) == b"".join(digests).hex().encode()
    assert hex_texts([*digests, other], 3) is None
    with pytest.raises(TypeError):
        hex_texts([*digests, None], 3)


def valid(bits, number):
    """Return which values are not None, from the validity bits of Arrow."""
    if bits is None:
        return [True] * number
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:number].tolist()


def test_pack_numbers_rejects_large_integers_and_text():
    with pytest.raises(OverflowError):
        pack_numbers([2**63], is_float=False)
    for is_float in (False, True):
        with pytest.raises(TypeError):
            pack_numbers(["1"], is_float=is_float)


@given(st.lists(st.sampled_from([0, 1, None, "x", -(2**40)])))
def test_name_texts_returns_the_name_of_each_id(ids):
    names = {0: b"", 1: "é".encode(), None: b"nothing"}
    lengths, texts = name_texts(ids, names)
    expected = [names.get(id_, b"unknown") for id_ in ids]
    assert np.frombuffer(lengths, np.int64).tolist() == [len(text) for text in expected]
    assert texts == b"".join(expected)


def test_records_table_has_decisions_of_any_json_values():
    """Knobs and parameters are lists of any values."""
    with Store(":memory:") as store:
        workload = make_workload(1)
        program = Program(workload, make_target(), Trace(b"[[1]]", None, b'[[[1,"a"]],[],[]]'))
        store.records.add([Measurement(program, (1.0,))], OWN)
        assert rows_of(store.table("records"))[0]["decisions"] == ['[1,"a"]']
