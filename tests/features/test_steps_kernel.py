"""The kernel of ``steps``, compared with a plain reference and run on damaged input."""

import math

import numpy as np
import orjson
import pytest
import reference_steps as plain
from builders import leb128
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedb.features._steps import Formula, Numbers, evaluate

N_COLUMNS = 5
N_SOURCE = 3

finite = st.floats(-1e9, 1e9, allow_nan=False) | st.integers(-4, 300).map(float)


@st.composite
def operations(draw, n_slots):
    """Return operations with their lists and constants."""
    made, lists = [], []
    constants = draw(st.lists(finite, min_size=1, max_size=4))
    sizes = {
        plain.CONST: len(constants),
        plain.SLOT: n_slots,
        plain.TAIL: N_SOURCE,
        plain.DEVICE: N_SOURCE,
        plain.TASK: N_SOURCE,
    }
    for at in range(draw(st.integers(1, 25))):
        first = plain.TASK if at == 0 else plain.WITHIN
        code = draw(st.integers(plain.CONST, first).filter(lambda code: sizes.get(code, 1) > 0))
        if code in sizes:
            made.append((code, draw(st.integers(0, sizes[code] - 1)), 0, 0))
        elif code < plain.LEAST:
            made.append((code, draw(st.integers(0, at - 1)), draw(st.integers(0, at - 1)), 0))
        else:
            items = draw(st.lists(st.integers(0, at - 1), max_size=5))
            made.append((code, len(lists), len(items), draw(st.integers(0, at - 1))))
            lists += items
    return {"operations": made, "lists": lists, "constants": constants}


@st.composite
def formulas(draw):
    """Return the parameters of a formula by name."""
    kind = draw(st.sampled_from([plain.TRACE, plain.VARINTS, plain.KNOBS]))
    decisions, n_literals = [], 0
    n_slots = draw(st.integers(0, 6))
    if kind == plain.TRACE:
        n_slots = 0
        for instruction in sorted(draw(st.sets(st.integers(0, 30), max_size=4))):
            count = draw(st.integers(-1, 4))
            decisions.append((instruction, n_slots, count))
            n_slots += max(count, 1) if count < 0 else count
        n_literals = draw(st.integers(0, 3))
        n_slots += n_literals
    body = draw(operations(n_slots))
    output = st.tuples(
        st.integers(0, N_COLUMNS - 1),
        st.integers(0, len(body["operations"]) - 1),
        st.integers(0, 1),
    )
    return body | {
        "stored": kind,
        "n_slots": n_slots,
        "decisions": decisions,
        "n_literals": n_literals,
        "outputs": draw(st.lists(output, max_size=N_COLUMNS)),
        "row": draw(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=5, max_size=5)),
    }


numbers = st.integers(-3, 2000) | st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
values = numbers | st.sampled_from(["none", "unroll", "vec", 'x\\"y', None, True, [1, {"a": "]"}]])


@st.composite
def cases(draw):
    formula = draw(formulas())
    wrong = draw(st.integers(0, 9)) == 0

    def some(count, of=values):
        count += draw(st.integers(-1, 1)) if wrong else 0
        return draw(st.lists(of, min_size=max(count, 0), max_size=max(count, 0)))

    if formula["stored"] == plain.VARINTS:
        data = b"".join(leb128(n) for n in some(formula["n_slots"], st.integers(0, 2**63 - 1)))
        return formula, data
    if formula["stored"] == plain.KNOBS:
        return formula, orjson.dumps(some(formula["n_slots"]))
    decided = []
    for instruction, _, count in formula["decisions"]:
        if draw(st.integers(0, 5)):
            value = draw(values) if count < 0 else some(count)
            decided.append([instruction + (draw(st.integers(0, 1)) if wrong else 0), value])
    return formula, orjson.dumps([decided, some(formula["n_literals"]), draw(st.lists(values))])


def make(formula, **changes):
    formula = formula | changes
    row = np.array(formula["row"], np.float32).tobytes()
    return Formula(**(formula | {"row": row, "n_tail": 3, "n_device": 3, "n_task": 3}))


def run(formula, data, tail=(1, 2, 3), device=(4, 0, -1), task=(2.5, math.nan, 7)):
    rows = np.full((1, N_COLUMNS), np.nan, np.float32)
    shared = [[Numbers(list(one))] for one in (tail, device, task)]
    (status,) = evaluate([make(formula)], [data], *shared, rows)
    return status, rows[0]


@settings(max_examples=examples(250))
@given(cases(), st.integers(0, 1000))
def test_rows_and_statuses_equal_the_reference(case, cut):
    formula, data = case
    status, row = run(formula, data)
    if formula["stored"] != plain.VARINTS:  # JSON that is cut off is rejected
        assert run(formula, data[: cut % len(data)])[0] != plain.DONE
    try:
        expected = plain.row_of(formula, data, (1, 2, 3), (4, 0, -1), (2.5, math.nan, 7))
    except plain.Refused as refusal:
        assert status == refusal.args[0]
        return
    assert status == plain.DONE
    np.testing.assert_allclose(row, np.array(expected, np.float32), rtol=1e-5, atol=1e-6)


@settings(max_examples=examples(150))
@given(formulas(), st.data())
def test_any_bytes_give_a_status_and_finite_rows(formula, data):
    alphabet = st.sampled_from(list(b'[]{},:"\\0123456789.-+eE tfnu\x80\xff'))
    text = bytes(data.draw(st.lists(alphabet, max_size=40)))
    status, row = run(formula, text)
    assert 0 <= status <= 3
    assert np.isfinite(row).all()


SIMPLE = {
    "stored": plain.KNOBS,
    "n_slots": 2,
    "decisions": [],
    "n_literals": 0,
    "constants": [2.0],
    "lists": [0, 1],
    "operations": [(plain.SLOT, 0, 0, 0), (plain.SLOT, 1, 0, 0), (plain.PRODUCT, 0, 2, 0)],
    "outputs": [(0, 2, 0), (1, 2, 1)],
    "row": [9.0] * N_COLUMNS,
}


def test_row_equals_one_computed_by_hand():
    status, row = run(SIMPLE, b"[3,5]")
    assert status == plain.DONE
    assert row.tolist() == [15.0, 4.0, 9.0, 9.0, 9.0]  # 15, log2(1 + 15), and what all share


@pytest.mark.parametrize(
    ("data", "status"),
    [
        *((data, plain.MISCOUNTED) for data in (b"[3]", b"[3,5,1]")),
        *((data, plain.DAMAGED) for data in (b"[3,5", b"[3,5]]", b"[3,]", b"")),
        *((data, plain.DAMAGED) for data in (b'[3,"a', b'[3,"\\')),
        (b"[3," + b"[" * 100_000, plain.DAMAGED),
        (b"[3," + b"9" * 1000 + b"]", plain.DAMAGED),
    ],
)
def test_damaged_knobs_give_their_status(data, status):
    assert run(SIMPLE, data)[0] == status


def test_annotations_unroll_and_vec_count_as_1_and_2():
    for word, value in (("none", 0), ("unroll", 1), ("vec", 2), ("other", 0)):
        assert run(SIMPLE, f'["{word}",3]'.encode())[1][0] == 3 * value
    assert run(SIMPLE, b"[true,3]")[1][0] == 3


TRACED = (
    SIMPLE
    | {"stored": plain.TRACE, "n_slots": 3, "n_literals": 1}
    | {"decisions": [(4, 0, 1), (7, 1, -1)]}
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"[[[4,[3]],[7,5]],[1],[]]", 15.0),
        (b"[[[4,[3]]],[1],[]]", 0.0),  # left open: the product is unknown
        (b"[[[4,[3]],[4,[3]]],[1],[]]", plain.UNEXPECTED),
        (b"[[[7,5],[4,[3]]],[1],[]]", plain.UNEXPECTED),
        (b"[[[5,1]],[1],[]]", plain.UNEXPECTED),
        (b"[[[4,[3,3]]],[1],[]]", plain.MISCOUNTED),
        (b"[[[4,[3]]],[],[]]", plain.MISCOUNTED),
        (b"[[[4,3]],[1],[]]", plain.DAMAGED),
        (b"[[[4,[3]]],[1]]", plain.DAMAGED),
        (b"[[[4,[3]]],[1],3]", plain.DAMAGED),
    ],
)
def test_decisions_of_a_trace_give_a_product_or_a_status(data, expected):
    status, row = run(TRACED, data)
    if isinstance(expected, float):
        assert (status, row[0]) == (plain.DONE, expected)
    else:
        assert status == expected


def test_evaluate_reads_json_numbers_of_all_forms():
    for text, value in (("-7", -7.0), ("1.5e3", 1500.0), ("2E-1", 0.2), ("0.125", 0.125)):
        assert run(SIMPLE, f"[{text},1]".encode())[1][0] == pytest.approx(value)
    assert run(SIMPLE, b"[1e9999,1]")[1][0] == np.float32(1e30)  # bounded
    assert run(SIMPLE, b"[1e9999,0]")[1][0] == 0  # unknown


@pytest.mark.parametrize(
    "change",
    [
        *({"stored": 3}, {"n_literals": 3}),
        *({"decisions": [one]} for one in ((0, 2, 1), (0, -1, 1), (0, 0, 2**31 - 1))),
        *({"outputs": [one]} for one in ((5, 0, 0), (0, 3, 0))),
        *(
            {"operations": [(code, number, 0, 0)]}
            for code, number in (
                *((plain.SLOT, 2), (plain.CONST, 1), (plain.TASK, 3), (plain.ADD, 0), (16, 0)),
            )
        ),
        *({"operations": [one]} for one in ((plain.SUM, 0, 3, 0), (plain.SUM, -1, 1, 0))),
        {"operations": [(plain.SLOT, 0, 0, 0), (plain.SUM, 0, 2, 0)]},
        {"operations": [(plain.SLOT, 0, 0, 0), (plain.PICK, 0, 1, 1)]},
    ],
)
def test_formula_rejects_references_out_of_range(change):
    with pytest.raises(ValueError, match="refers to what is not there"):
        make(SIMPLE, **({"outputs": []} | change))


def test_evaluate_rejects_parts_of_wrong_sizes_and_types():
    rows = np.zeros((1, N_COLUMNS), np.float32)
    three, two = [Numbers([1, 2, 3])], [Numbers([1, 2])]
    formula = [make(SIMPLE)]
    evaluate(formula, [b"[1,2]"], three, three, three, rows)
    for data, device, where, error, reason in (
        ([b"[1,2]"], two, rows, ValueError, "other numbers"),
        ([b"[1,2]"], three, rows[:, :4].copy(), ValueError, "other numbers"),
        ([], three, rows, ValueError, "lengths"),
        (["[1,2]"], three, rows, TypeError, None),
    ):
        with pytest.raises(error, match=reason):
            evaluate(formula, data, three, device, three, where)
    assert evaluate([], [], [], [], [], rows[:0]) == b""
