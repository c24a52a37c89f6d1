"""The table of a measurement's columns agrees with schema, records and digests."""

import inspect
from dataclasses import fields

import pytest

from tunedb import identity
from tunedb.records import Measurement
from tunedb.storage import schema
from tunedb.storage.columns import BUNDLE_VERSION, IDENTITY, MEASUREMENT, Form
from tunedb.storage.exchange_types import COLUMNS

TYPES = {int: schema.Int, float: schema.Real, str: schema.Text, bytes: schema.Blob}


@pytest.mark.parametrize("column", MEASUREMENT, ids=lambda column: column.name)
def test_column_matches_the_schema(column):
    stored = schema.metadata.tables[column.table].c[column.stored]
    assert stored.type is TYPES[column.type]
    if column.wire:
        assert stored.nullable == column.may_be_none
    assert column.since in schema.REVISIONS
    assert 1 <= column.bundle <= BUNDLE_VERSION
    if column.form in (Form.REFERENCE, Form.SHARED_JSON):
        assert column.name in COLUMNS
        assert [key.column.table.name for key in stored.foreign_keys] == [column.name]


#: Columns of table ``measurement`` that are derived from others.
DERIVED = frozenset({"program_id", "mean", "served"})


def test_every_column_of_the_schema_is_in_the_table():
    here = {column.stored for column in MEASUREMENT if column.table == "measurement"}
    # A program's workload and target are in both tables.
    assert here | DERIVED | {"workload_id", "target_id"} == set(schema.measurement.c.keys())


def test_columns_match_the_fields_of_a_measurement():
    names = {field.name for field in fields(Measurement)}
    converted = {Form.PLAIN, Form.JSON, Form.SHARED_JSON}
    assert {column.name for column in MEASUREMENT if column.form in converted} <= names
    outside = {column.name for column in MEASUREMENT if not column.in_identity}
    outside |= {"program", "failure", "launches"}
    assert {column.name for column in IDENTITY} == names - outside


def test_measurement_digest_takes_the_identity_columns_in_order():
    names = list(inspect.signature(identity.measurement_digest).parameters)
    assert names == ["program", *(column.name for column in IDENTITY)]
