"""Bundles that are priors: what they keep of a measurement."""

from __future__ import annotations

import math

import orjson
import pytest
from builders import add, make_measurement
from effort import examples
from exchanges import given_by
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.exchange.bundle import BundlePeer
from tunedb.exchange.prior import _rounded, merge_prior, write_prior
from tunedb.identity import unpack_floats
from tunedb.records import Origin, Status
from tunedb.run_times import NO_TIME
from tunedb.storage.exchange_types import COLUMNS, EVERYTHING
from tunedb.storage.store import Store

SEARCHED = {"search": {"operators": ["tile_size"]}}
TIMES = (0.1, 1 / 3, 2.5e-6, NO_TIME)


@pytest.fixture
def database(tmp_path):
    with Store(tmp_path / "own.db") as store:
        lineage = {"donor": b"d" * 16, "origin": Origin.MUTATED}
        for number, extra in enumerate((SEARCHED, SEARCHED | {"final": "lost"}, {"final": "won"})):
            text = orjson.dumps(extra, option=orjson.OPT_SORT_KEYS)
            add(store, make_measurement(number, TIMES, extra=text, **lineage))
        add(store, make_measurement(3, TIMES, extra=b'["search"]'))
        add(store, make_measurement(4, None, status=Status.FAILED))
    return tmp_path / "own.db"


def measurements(chunks):
    rows = [row for chunk in chunks if chunk.table == "measurement" for row in chunk.rows]
    return [dict(zip(COLUMNS["measurement"], row, strict=True)) for row in rows]


def test_prior_has_no_lineage_and_times_of_seven_digits(database, tmp_path):
    write_prior(database, tmp_path / "first.prior", EVERYTHING, "MIT")
    with BundlePeer(tmp_path / "first.prior") as peer:
        found = measurements(peer.chunks(EVERYTHING))
    *rest, failed = found
    extras = [None, '{"final":"lost"}', '{"final":"won"}', '["search"]']
    assert [row["extra"] for row in rest] == extras
    assert failed["run_secs"] is None
    *given, _ = measurements(given_by(database))
    for row, before in zip(rest, given, strict=True):
        assert row["donor"] is None
        assert unpack_floats(row["run_secs"]) == pytest.approx(TIMES, rel=1e-7)
        changed = {"run_secs", "donor", "extra", "digest", "program_digest"}
        assert {name for name in row if row[name] != before[name]} <= changed


def test_prior_of_a_merged_prior_has_the_same_measurements(database, tmp_path):
    first, second = tmp_path / "first.prior", tmp_path / "second.prior"
    write_prior(database, first, EVERYTHING, "MIT")
    with Store(tmp_path / "merged.db") as store, BundlePeer(first) as peer:
        merge_prior(store, peer)
    write_prior(tmp_path / "merged.db", second, EVERYTHING, "MIT")
    with BundlePeer(first) as one, BundlePeer(second) as other:
        chunks = [measurements(peer.chunks(EVERYTHING)) for peer in (one, other)]
    assert chunks[0] == chunks[1]


@settings(max_examples=examples(200))
@given(st.floats(1e-300, 1e300))
def test_rounded_time_has_the_bits_of_single_precision(seconds):
    found = _rounded(seconds)
    assert abs(found - seconds) <= seconds * 2**-24
    mantissa, _ = math.frexp(found)
    assert (mantissa * 2**24).is_integer()
