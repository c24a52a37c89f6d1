"""Bounds, modular sets and coefficients against TVM's own analyzer."""

from __future__ import annotations

import tvm
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tvm import tirx

from tunedb.errors import FormatError
from tunedb.features._bounds import bounds
from tunedb.features._nest import NestBuilder, Op
from tunedb.plugins.metaschedule import compat


def _bits(name, call):
    """Return the class of a bitwise operation, or up to TVM 0.26 the name of its intrinsic."""
    return getattr(tirx, name, f"tirx.{call}")


_BINARY = {
    Op.OP_ADD: tirx.Add,
    Op.OP_SUB: tirx.Sub,
    Op.OP_MUL: tirx.Mul,
    Op.OP_DIV: tirx.Div,
    Op.OP_MOD: tirx.Mod,
    Op.OP_FLOORDIV: tirx.FloorDiv,
    Op.OP_FLOORMOD: tirx.FloorMod,
    Op.OP_MIN: tirx.Min,
    Op.OP_MAX: tirx.Max,
    Op.OP_SHL: _bits("LShift", "shift_left"),
    Op.OP_SHR: _bits("RShift", "shift_right"),
    Op.OP_BITAND: _bits("BitwiseAnd", "bitwise_and"),
}


class Both:
    """Builds an expression for TVM and in the flat form at once."""

    def __init__(self, bits):
        self.bits = bits
        self.dtype = f"int{bits}"
        self.build = NestBuilder()
        self.loops = []
        self.free = None

    def loop(self, name, low, extent):
        self.build.open_loop(name, extent, min=low, bits=self.bits)
        self.loops.append((tirx.Var(name, self.dtype), low, extent))

    def constant(self, value):
        return tirx.IntImm(self.dtype, value), self.build.int_(value, 0, self.bits)

    def variable(self, which):
        if which < len(self.loops):
            return self.loops[which][0], self.build.loop_var(which)
        if self.free is None:
            self.free = tirx.Var("n", self.dtype), self.build.free_var("n", 0, self.bits)
        return self.free

    def make(self, tree):
        """Return TVM's expression and the number of its node in the flat form."""
        kind, *rest = tree
        if kind == "constant":
            return self.constant(*rest)
        if kind == "variable":
            return self.variable(*rest)
        operands = [self.make(one) for one in rest]
        theirs = [one for one, _ in operands]
        ours = [one for _, one in operands]
        if kind == "select":
            condition = self.build.node(Op.OP_LT, ours[:2], code=6, bits=8)
            return (
                tirx.Select(tirx.LT(*theirs[:2]), *theirs[2:]),
                self.build.node(Op.OP_SELECT, [condition, *ours[2:]], bits=self.bits),
            )
        if kind == "cast":
            narrow = self.build.node(Op.OP_CAST, ours, code=0, bits=8)
            back = self.build.node(Op.OP_CAST, [narrow], code=0, bits=self.bits)
            return tirx.Cast(self.dtype, tirx.Cast("int8", theirs[0])), back
        if kind == "compared":
            test = self.build.node(Op.OP_LT, ours, code=6, bits=8)
            back = self.build.node(Op.OP_CAST, [test], code=0, bits=self.bits)
            return tirx.Cast(self.dtype, tirx.LT(*theirs)), back
        node = self.build.node(kind, ours, bits=self.bits)
        made = _BINARY[kind]
        if isinstance(made, str):
            return tirx.call_intrin(self.dtype, made, *theirs), node
        return made(*theirs), node


_leaf = st.one_of(
    st.tuples(st.just("constant"), st.integers(-9, 40)),
    st.tuples(st.just("constant"), st.sampled_from([2, 4, 8, 16, 64])),
    st.tuples(st.just("variable"), st.integers(0, 3)),
    st.tuples(st.just("variable"), st.integers(0, 2)),
)
_LARGE = [2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1]
if compat.number() >= (0, 27):
    # It is one less than the analyzer's negative infinity; earlier releases take it for a number.
    _LARGE.append(-(2**63))
_large = st.tuples(st.just("constant"), st.sampled_from(_LARGE))


def _grown(inner):
    return st.one_of(
        st.tuples(st.sampled_from([one for one in _BINARY if one <= Op.OP_MAX]), inner, inner),
        st.tuples(
            st.sampled_from([Op.OP_FLOORDIV, Op.OP_FLOORMOD, Op.OP_DIV, Op.OP_MOD, Op.OP_MUL]),
            inner,
            st.tuples(st.just("constant"), st.sampled_from([-3, 1, 2, 3, 4, 6, 8, 32])),
        ),
        st.tuples(
            st.sampled_from([Op.OP_SHL, Op.OP_SHR]),
            inner,
            st.tuples(st.just("constant"), st.integers(0, 5)),
        ),
        st.tuples(st.just(Op.OP_BITAND), inner, inner),
        st.tuples(st.just("select"), inner, inner, inner, inner),
        st.tuples(st.just("cast"), inner),
        st.tuples(st.just("compared"), inner, inner),
    )


_trees = st.recursive(_leaf, _grown, max_leaves=8)
_wide_trees = st.recursive(st.one_of(_leaf, _large), _grown, max_leaves=6)
_loops = st.lists(
    st.tuples(st.integers(-3, 5), st.one_of(st.just(1), st.integers(1, 20))), min_size=3, max_size=3
)


def _theirs(both, expression, ranged):
    analyzer = (tvm.sym if hasattr(tvm, "sym") else tvm.arith).Analyzer()
    for var, low, _ in both.loops:
        analyzer.bind(var, tirx.IntImm(both.dtype, low), allow_override=True)
    for level in range(len(both.loops) - 1, ranged - 1, -1):
        var, low, extent = both.loops[level]
        span = tvm.ir.Range.from_min_extent(
            tirx.IntImm(both.dtype, low), tirx.IntImm(both.dtype, extent)
        )
        analyzer.bind(var, span, allow_override=True)
    bound = analyzer.const_int_bound(expression)
    sets = analyzer.modular_set(expression)
    return bound.min_value, bound.max_value, sets.coeff, sets.base


def _compare(tree, loops, bits, ranged):
    both = Both(bits)
    both.build.nest.follows_025 = compat.number() == (0, 25)
    for name, (low, extent) in zip("ijk", loops, strict=True):
        both.loop(name, low, extent)
    try:
        expression, node = both.make(tree)
    except (ValueError, tvm.error.InternalError, ZeroDivisionError):
        return  # TVM refuses to build it
    try:
        theirs = _theirs(both, expression, ranged)
    except Exception as error:
        # TVM refuses to fold a constant that its type cannot hold. Up to 0.26 it makes such a
        # constant itself: a mask of 2**31 - 1 or 2**63 - 1, plus one.
        if "exceeds range" in str(error) or "Literal value" in str(error):
            return
        theirs = None
    try:
        ours = bounds(both.build.nest, node, range(ranged, 3))
    except FormatError:
        ours = None
    assert ours == theirs, expression


_ONE, _MINUS_THREE = ("constant", 1), ("constant", -3)
_REST = (Op.OP_MOD, _ONE, _MINUS_THREE)
_OF_A_REST = (Op.OP_FLOORMOD, ("variable", 0), ("constant", 14))


@settings(max_examples=examples(600))
@example((Op.OP_MOD, _REST, _MINUS_THREE), [(0, 1)] * 3, 32, 0)
@example((Op.OP_MOD, (Op.OP_MOD, _REST, _MINUS_THREE), _MINUS_THREE), [(0, 1)] * 3, 64, 3)
@example((Op.OP_DIV, (Op.OP_MUL, _REST, ("constant", 3)), ("constant", 3)), [(0, 1)] * 3, 32, 0)
@example((Op.OP_FLOORMOD, _OF_A_REST, ("constant", 4)), [(0, 20)] * 3, 32, 3)
@given(_trees, _loops, st.sampled_from([32, 64]), st.integers(0, 3))
def test_bounds_equal_those_of_tvm(tree, loops, bits, ranged):
    _compare(tree, loops, bits, ranged)


@settings(max_examples=examples(300))
@given(_wide_trees, _loops, st.integers(0, 3))
def test_bounds_equal_those_of_tvm_at_the_limits_of_integers(tree, loops, ranged):
    _compare(tree, loops, 64, ranged)
