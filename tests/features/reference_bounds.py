"""Bounds of index expressions in plain Python, from the definitions of TVM's analyzers.

Written over `Nest.dump()`, each expression as the tree that it is printed as. Numbers are Python's;
what leaves the range of infinities is cut off where TVM cuts it off, and otherwise wraps.
"""

from __future__ import annotations

from math import gcd

from tunedb.features._nest import Op

INF = 2**63 - 1


class Refused(Exception):
    """TVM ends in an error for this expression."""


def wrap(x):
    """Return what a 64-bit integer holds of a number."""
    return (x + 2**63) % 2**64 - 2**63


def cut(x):
    return max(-INF, min(INF, x))


def quotient(x, y):
    """Divide towards zero."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def modulo(x, y):
    """Return the rest of `quotient`."""
    return x - quotient(x, y) * y


def everything(code, bits):
    """Return the values of a type."""
    if code == 6:
        return 0, 1
    if code not in (0, 1):
        return -INF, INF
    value_bits = bits - (code == 0)
    high = INF if value_bits >= 63 else 2**value_bits - 1
    if code == 1:
        return 0, high
    return (-INF if value_bits >= 63 else -high - 1), high


def ends(low, high):
    return (INF - 1 if low == INF else low), (-INF + 1 if high == -INF else high)


def add(x, y):
    if abs(x) == INF:
        if y == -x:
            raise Refused
        return x
    return cut(x + y)


def divide(x, y, floors):
    if y == 0:  # the end of an empty bound
        raise Refused
    if abs(x) == INF:
        return x if y > 0 else -x
    return x // y if floors else quotient(x, y)


def shift_left(x, y):
    if abs(x) == INF:
        return x
    return wrap(x << (y % 64)) if x.bit_length() + y < 64 else INF


def shift_right(x, y):
    return x if abs(x) == INF else x >> (y % 64)


def corners(a, b, operation):
    found = [operation(x, y) for x in a for y in b]
    return min(found), max(found)


def congruent(coeff, base):
    if coeff < 0:
        coeff, base = -coeff, -base
    return coeff, wrap(base % coeff if coeff else base)


class Reference:
    """The state of TVM's analyzer: what variables are bound to.

    Modular sets follow the ranges if it is `exact`; as in 0.25 they alone bound remainders.
    """

    def __init__(self, dump, exact=False, follows_025=False):
        self.nodes = dump["nodes"]
        self.vars = dump["vars"]
        self.loops = dump["loops"]
        self.exact = exact
        self.follows_025 = follows_025
        self.bounds = {}
        self.sets = {}
        self.minima = {}  # bounds where all loops are at their minimum

    # ---- bindings

    def bind_min(self, loop):
        var, node = self.loops[loop]["var"], self.loops[loop]["min_node"]
        self.bounds[var] = self.bound(node)
        self.sets[var] = self.modular(node)

    def bind_range(self, loop):
        one = self.loops[loop]
        if one["has_extent"] and one["extent"] == 1:
            self.bind_min(loop)
            return
        low, extent = self.bound(one["min_node"]), self.bound(one["extent_node"])
        self.bounds[one["var"]] = (low[0], add(low[1], add(extent[1], -1)))
        if self.exact:
            self.sets[one["var"]] = (1, 0)

    # ---- bounds

    def bound(self, number):
        node = self.nodes[number]
        op = Op(node["op"])
        whole = everything(node["code"], node["bits"])
        if op == Op.OP_INT:
            value = node["value"]
            if abs(value) >= INF:
                return (INF - 1, INF) if value > 0 else (-INF, -INF + 1)
            return value, value
        if op == Op.OP_VAR:
            var = self.vars[node["value"]]
            return self.bounds.get(node["value"], everything(var["code"], var["bits"]))
        if op == Op.OP_CAST:
            low, high = self.bound(node["a"])
            return max(low, whole[0]), min(high, whole[1])
        if op == Op.OP_SELECT:
            parts = self.bound(node["b"]), self.bound(node["c"])
            return min(low for low, _ in parts), max(high for _, high in parts)
        if op == Op.OP_BROADCAST:
            return self.bound(node["a"])
        if op == Op.OP_RAMP:
            return self.ramp(node)
        if (op <= Op.OP_MAX and op >= Op.OP_ADD) or op in (Op.OP_SHL, Op.OP_SHR, Op.OP_BITAND):
            return self.binary(node, op, self.bound(node["a"]), self.bound(node["b"]), whole)
        return whole

    def ramp(self, node):
        first = self.bound(node["a"])
        last = self.nodes[node["c"]]["value"] - 1
        steps = corners((last, last), self.bound(node["b"]), lambda x, y: cut(x * y))
        end = add(first[0], steps[0]), add(first[1], steps[1])
        return min(first[0], end[0]), max(first[1], end[1])

    def binary(self, node, op, a, b, whole):
        if op == Op.OP_ADD:
            return add(a[0], b[0]), add(a[1], b[1])
        if op == Op.OP_SUB:
            return add(a[0], -b[1]), add(a[1], -b[0])
        if op == Op.OP_MUL:
            return corners(a, b, lambda x, y: cut(x * y))
        if op == Op.OP_MIN:
            return min(a[0], b[0]), min(a[1], b[1])
        if op == Op.OP_MAX:
            return max(a[0], b[0]), max(a[1], b[1])
        if op == Op.OP_SHR:
            return corners(a, b, shift_right)
        if op == Op.OP_SHL:
            return whole if a[0] < 0 or b[0] < 0 else corners(a, b, shift_left)
        if op == Op.OP_BITAND:
            known = [high for low, high in (a, b) if low >= 0]
            return ends(0, min(known)) if known else whole
        if b[0] == 0:
            if b[1] < 1:
                raise Refused
            b = 1, b[1]
        if op in (Op.OP_DIV, Op.OP_FLOORDIV):
            return self.division(node, a, b, whole, op == Op.OP_FLOORDIV)
        return self.rest(node, a, b, whole, op == Op.OP_FLOORMOD)

    def division(self, node, a, b, whole, floors):
        def over(b):
            return corners(a, b, lambda x, y: divide(x, y, floors))

        if b[0] > 0 or b[1] < 0:
            return over(b)
        assert node["code"] == 0
        parts = [over((b[0], -1) if b[0] < 0 else whole), over((1, b[1]) if b[1] > 0 else whole)]
        return ends(min(low for low, _ in parts), max(high for _, high in parts))

    def rest(self, node, a, b, whole, floors):
        if b[0] < 0:
            if not floors:
                return whole
            low, high = ends(min(0, add(b[0], 1)), max(0, add(b[1], -1)))
            return max(low, whole[0]), min(high, whole[1])
        cap = add(b[1], -1)
        if a[0] >= 0:
            found = a if a[1] < b[0] else ends(0, min(a[1], cap))
        elif floors:
            found = ends(0, cap)
        elif a[1] < 0:
            found = a if a[0] > -b[0] else ends(max(a[0], -cap), 0)
        else:
            found = ends(max(a[0], -cap), min(a[1], cap))
        if b[0] != b[1]:
            return found
        coeff, base = self.modular(node["a"])
        step = gcd(coeff, b[0])
        if step <= 1:
            return found
        base, top = base % step, b[0] - step
        low, high = base, top + base
        if self.follows_025:
            return ends(low, high)
        if not floors and a[0] < 0:
            low = -(top + -base % step)
            if a[1] < 0:
                high = -(-base % step)
        low, high = ends(low, high)
        return max(found[0], low), min(found[1], high)

    # ---- modular sets

    def modular(self, number):
        node = self.nodes[number]
        op = Op(node["op"])
        if op == Op.OP_INT:
            return 0, node["value"]
        if op == Op.OP_VAR:
            return self.sets.get(node["value"], (1, 0))
        if op == Op.OP_CAST:
            return self.modular(node["a"])
        if op == Op.OP_SELECT:
            return self.either(self.modular(node["b"]), self.modular(node["c"]))
        if not (Op.OP_ADD <= op <= Op.OP_MAX or op in (Op.OP_SHL, Op.OP_SHR, Op.OP_BITAND)):
            return 1, 0
        b = self.modular(node["b"])
        if op in (Op.OP_ADD, Op.OP_SUB, Op.OP_MUL, Op.OP_MIN, Op.OP_MAX, Op.OP_SHL):
            return self.modular_binary(op, self.modular(node["a"]), b)
        if b[0] != 0:
            return 1, 0
        if op == Op.OP_SHR:
            return self.modular_division(node["a"], 2 ** (b[1] % 64), True)
        if op == Op.OP_BITAND:
            size = b[1] + 1
            if size > 0 and size & (size - 1) == 0:
                return self.modular_rest(node["a"], size, True)
            return 1, 0
        if op in (Op.OP_DIV, Op.OP_FLOORDIV):
            return self.modular_division(node["a"], b[1], op == Op.OP_FLOORDIV)
        return self.modular_rest(node["a"], b[1], op == Op.OP_FLOORMOD)

    def modular_binary(self, op, a, b):
        if op == Op.OP_ADD:
            return congruent(gcd(a[0], b[0]), wrap(a[1] + b[1]))
        if op == Op.OP_SUB:
            return congruent(gcd(a[0], b[0]), wrap(a[1] - b[1]))
        if op == Op.OP_MUL:
            parts = [wrap(x) for x in (a[0] * b[0], a[0] * b[1], a[1] * b[0])]
            return congruent(gcd(*parts), wrap(a[1] * b[1]))
        if op == Op.OP_SHL:
            if b[0] != 0:
                return 1, 0
            return congruent(wrap(a[0] << (b[1] % 64)), wrap(a[1] << (b[1] % 64)))
        return self.either(a, b)

    def either(self, a, b):
        step = gcd(a[0], b[0])
        if step == 0:
            return a if a[1] == b[1] else (1, 0)
        x, y = modulo(a[1], step), modulo(b[1], step)
        return congruent(step if x == y else gcd(x, y, step), x)

    def not_negative(self, number):
        """Whether TVM proves it: its simplifier takes loops for being at their minimum."""
        now, self.bounds = self.bounds, {**self.bounds, **self.minima}
        found = self.bound(number)[0] >= 0
        self.bounds = now
        folded = self.folded(number)
        return found or (folded is not None and folded >= 0)

    def folded(self, number):
        """The value of an expression of constants alone, which TVM's simplifier folds."""
        node = self.nodes[number]
        op = Op(node["op"])
        if op == Op.OP_INT:
            return node["value"]
        if not Op.OP_ADD <= op <= Op.OP_MAX:
            return None
        a, b = self.folded(node["a"]), self.folded(node["b"])
        if a is None or b is None:
            return None
        if op in (Op.OP_DIV, Op.OP_MOD, Op.OP_FLOORDIV, Op.OP_FLOORMOD):
            if b in (0, -1):
                return None
            floor = a // b
            truncated = quotient(a, b)
            return {
                Op.OP_DIV: truncated,
                Op.OP_MOD: a - truncated * b,
                Op.OP_FLOORDIV: floor,
                Op.OP_FLOORMOD: a - floor * b,
            }[op]
        return {
            Op.OP_ADD: wrap(a + b),
            Op.OP_SUB: wrap(a - b),
            Op.OP_MUL: wrap(a * b),
            Op.OP_MIN: min(a, b),
            Op.OP_MAX: max(a, b),
        }[op]

    def modular_division(self, number, value, floors):
        coeff, base = self.modular(number)
        if value == 0:
            raise Refused
        if coeff % value == 0:
            if base == 0:
                return congruent(abs(quotient(coeff, value)), 0)
            if base > 0 and value > 0 and (floors or self.not_negative(number)):
                return congruent(coeff // value, base // value)
        return 1, 0

    def modular_rest(self, number, value, floors):
        coeff, base = self.modular(number)
        if value == 0:
            raise Refused
        step = gcd(coeff, value)
        rest = modulo(base, step)
        if rest == 0 or (base > 0 and (floors or self.not_negative(number))):
            return congruent(step, rest)
        return 1, 0


def coefficient(dump, number, var):
    """Return the coefficient that TVM's stride analysis finds for a variable."""
    nodes = dump["nodes"]
    met = {"var": False, "sum": False, "product": False, "stride": 0}

    def walk(number):
        node = nodes[number]
        op = Op(node["op"])
        if op == Op.OP_VAR:
            if node["value"] == var:
                met["var"], met["stride"] = True, 2
            return
        for operand in node.get("arguments", [node["a"], node["b"], node["c"]]):
            if operand >= 0:
                walk(operand)
        if op == Op.OP_MUL and met["var"] and not met["sum"]:
            for side in (nodes[node["a"]], nodes[node["b"]]):
                if side["op"] == Op.OP_INT:
                    met["product"], met["stride"] = True, side["value"]
                    break
        if op == Op.OP_ADD and met["var"] and not met["product"]:
            met["sum"], met["stride"] = True, 1

    walk(number)
    if not met["var"]:
        return 0
    return met["stride"] if met["sum"] or met["product"] else 1
