"""docs/sql.md and docs/tables.md: results of the queries, and descriptions of all columns."""

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from builders import FOREIGN, OWN, make_measurement
from every_kind import measurements, rows_of

from tunedb.storage.store import Store
from tunedb.storage.tables import COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
QUESTIONS = dict(
    re.findall(r"^(\w[^`\n]*\?)\n\n```sql\n(.*?)```", PAGE.read_text("utf-8"), re.M | re.S)
)

#: The beginning of each question → its answer.
ANSWERS = {
    "What is the fastest": [
        ("matmul", "llvm skylake", 500_000, 1.0),
        ("matmul_1", "llvm skylake", 62_500, None),
    ],
    "How much has been": [("matmul_1", "llvm skylake", 8, 25), ("matmul", "llvm skylake", 2, 0)],
    "Why did": [("timeout", "run", 1, 10), ("unknown", "unknown", 1, None)],
    "How much faster": [("matmul_1", "llvm skylake", 32), ("matmul", "llvm skylake", 1)],
    "Which decisions": [
        *((0.0625, [[2, [4, 4]]]), (0.125, [[2, [1, 4]]])),
        *((0.375, [[2, [0, 4]]]), (2, [[2, [5, 4]]])),
    ],
    "Which kind": [("mutated", 1, 0.125), ("unknown", 5, 0.6875)],
    "How much time": [("matmul_1", "llvm skylake", 2.5)],
    "Which machines": [('a "b"', None, 4, 2, "2026-01-01 00:00:00.123456")],
    "What do strangers": [("matmul_1", "foreign", pytest.approx(62.5))],
    "Which kernels": [("gemm", 40, 128, 250_000)],
}


@pytest.fixture
def filled(store_url):
    with Store(store_url) as store:
        costly = make_measurement(5, (2.0,), workload=1, all_cost=2.5)
        store.records.add([*measurements(), costly], OWN)
        store.records.add([make_measurement(9, (1e-3,), workload=1)], FOREIGN)
        with store._db.transaction() as connection:
            connection.exec_driver_sql("UPDATE workload SET flops = 5e8 WHERE name = 'matmul'")
    return store_url


def plain(value):
    """Return a value of either driver in one form, with times as text and JSON parsed."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"
    if isinstance(value, str) and value.startswith("["):
        return json.loads(value)
    return float(value) if isinstance(value, Decimal) else value


def test_queries_of_the_page_return_the_expected_rows(filled):
    assert len(QUESTIONS) == len(ANSWERS) == 10
    for beginning, answer in ANSWERS.items():
        (query,) = [sql for question, sql in QUESTIONS.items() if question.startswith(beginning)]
        rows = rows_of(filled, query)
        assert [tuple(map(plain, row.values())) for row in rows] == answer, beginning


def test_the_page_of_tables_describes_every_column():
    """It has each column with its type and unit, and no other column."""
    text = (PAGE.parent / "tables.md").read_text("utf-8")
    described = {}
    for heading, body in re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        lines = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]*) \|", body, re.M)
        described[heading] = [(name, kind.strip(), unit.strip()) for name, kind, unit in lines]
    names = {
        **{"int": "int64", "float": "float64", "bool": "bool", "time": "timestamp[us, UTC]"},
        **{"text": "string", "texts": "list of string", "floats": "list of float64"},
        "vector": "fixed-size list of float32",
    }
    assert described == {
        table: [(column.name, names[column.type], column.unit) for column in columns]
        for table, columns in COLUMNS.items()
    }
