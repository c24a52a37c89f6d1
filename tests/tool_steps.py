"""Strategies for valid steps of auto_scheduler and knobs of AutoTVM."""

from hypothesis import strategies as st

from tunedb.programs.ansor import CODES

INT64 = st.integers(-(2**63), 2**63 - 1)

_small = st.integers(0, 300)
_index = _small | st.integers(0, 2**63 - 1)
_pragmas = (
    st.builds("auto_unroll_max_step${}".format, st.integers(-2, 2**70))
    | st.builds("auto_unroll_max_step${}".format, st.text("0123456789", max_size=21))
    | st.text(max_size=8)
)
_BY_KIND = {
    "i": _index,
    "z": INT64,
    "b": st.integers(0, 1),
    "a": st.integers(0, 11),
    "s": st.sampled_from(["shared", "local", "warp"]) | st.text(max_size=8),
    "l": st.lists(_small, max_size=6),
    "e": _index,
    "n": st.lists(_index, max_size=5) | st.lists(st.none() | _index, max_size=5),
    "p": _pragmas,
}
ANSOR_STEPS = st.lists(
    st.one_of(
        [
            st.tuples(st.just(code), *[_BY_KIND[kind] for kind in value.kinds]).map(list)
            for code, value in CODES.items()
        ]
    ),
    max_size=8,
)


def knobs(text, value):
    """Return a strategy for one knob with such names and such other values."""
    return st.one_of(
        st.tuples(text, st.sampled_from(["sp", "re", "an"]), st.lists(INT64, max_size=4)),
        st.tuples(text, st.just("an"), st.lists(text, max_size=4)),
        st.tuples(text, st.just("ot"), value),
    ).map(list)
