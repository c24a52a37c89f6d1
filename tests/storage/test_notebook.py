"""HTML of objects in notebooks: plain tables, whatever text strangers put into records."""

from html.parser import HTMLParser

import pytest
from builders import FOREIGN, OWN, make_measurement, make_workload
from every_kind import TIMEOUT, measurements

from tunedb.records import Source, SourceKind, Trust
from tunedb.results import StoredModel
from tunedb.storage.store import Store

EVIL = '<script src="//evil">&</script>\x1b[31m" onclick="x'
EVALUATION = {"ndcg": 0.5, EVIL: EVIL, "folds": [1, 2]}
CARD = {"body": {"bytes": 10}, "evaluation": EVALUATION, "kind": "x"}


class Page(HTMLParser):
    """The text of a page; asserts that its tags are those of plain tables."""

    def __init__(self, html):
        super().__init__()
        self.text = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        assert tag in {"table", "caption", "tr", "th", "td", "p"}
        assert attrs == []

    def handle_data(self, data):
        self.text.append(data)


def text_of(thing):
    html = thing._repr_html_()
    assert html.isprintable()
    assert len(html) < 30_000
    return Page(html).text


@pytest.fixture
def store():
    with Store(":memory:") as store:
        store.records.add(measurements(), OWN)
        evil = make_workload(5, name=EVIL * 100)
        source = Source(EVIL, SourceKind.FILE, Trust.FOREIGN)
        store.records.add([make_measurement(1, workload=evil)], source)
        yield store


def test_html_of_record_shows_status_times_and_failure(store):
    text = text_of(store.records.get(1))
    assert text[:3] == ["Record 1", "workload", "matmul_1 (1)"]
    assert text[text.index("repeats (s)") + 1] == "0.5, 0.25"
    assert "own (own)" in text
    failed, cut = text_of(store.records.get(3)), text_of(store.records.get(8))
    assert f"timeout (run): {TIMEOUT.message}" in failed
    assert cut[cut.index("status") + 1] == "cut_short"
    assert cut[cut.index("repeats (s)") + 1] == "1e-09"
    assert "mean (s)" not in failed + cut
    assert text_of(store.records.get(9))


def test_html_of_workload_store_and_model_shows_their_figures(store):
    text = text_of(store.workloads.find("matmul_1")[0])
    assert text[text.index("records") + 1] == "6"
    assert all(text_of(workload) for workload in store.workloads.find())
    text = text_of(store)
    assert text[0] == ":memory:"
    assert text[text.index("measurements") + 1] == "9"
    text = text_of(StoredModel(1, b"d" * 16, "ranker", b"{}", b"t" * 16, CARD, 0, None))
    assert text[text.index("evaluation: ndcg") + 1] == "0.5"


def test_html_of_table_shows_first_rows_and_counts_the_rest(store):
    text = text_of(store.table("records"))
    assert text[:2] == ["Table records", "record_id"]
    store.records.add([make_measurement(n, workload=9) for n in range(30)], FOREIGN)
    assert text_of(store.table("records"))[-1] == "19 more rows"
    assert text_of(store.table("launches"))[:2] == ["Table launches", "launch_id"]
    assert text_of(store.table("sessions", None))[0] == "Table sessions"
    with Store(":memory:") as empty:
        assert text_of(empty.table("records"))[-1] == "decisions"
