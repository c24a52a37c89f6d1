"""Plain references of ``tunedb.features._steps``, written from its documentation."""

import math

import orjson

UNKNOWN = math.nan
BOUND = 1e30
WORDS = {"none": 0.0, "unroll": 1.0, "vec": 2.0}

CONST, SLOT, TAIL, DEVICE, TASK, ADD, SUB, MUL, DIV, CEILDIV, GCD = range(11)
LEAST, GREATEST, SUM, PRODUCT, PREFIX, PICK, WITHIN = range(11, 18)
TRACE, VARINTS, KNOBS = range(3)
DONE, DAMAGED, UNEXPECTED, MISCOUNTED = range(4)


class Refused(Exception):
    """The status of a program that has no row."""


def slots_of(formula, data):
    """Return the numbers of a program's decisions."""
    if formula["stored"] == VARINTS:
        values = list(varints(data))
        if len(values) != formula["n_slots"]:
            raise Refused(MISCOUNTED)
        return values
    value = orjson.loads(data)
    if formula["stored"] == KNOBS:
        return listed(value, formula["n_slots"])
    decisions, literals, _ = value
    slots = [UNKNOWN] * (formula["n_slots"] - formula["n_literals"])
    known = {instruction: (slot, count) for instruction, slot, count in formula["decisions"]}
    last = -1
    for instruction, decided in decisions:
        if instruction not in known or instruction <= last:
            raise Refused(UNEXPECTED)
        last = instruction
        slot, count = known[instruction]
        values = [number(decided)] if count < 0 else listed(decided, count)
        slots[slot : slot + len(values)] = values
    return slots + listed(literals, formula["n_literals"])


def listed(values, count):
    if type(values) is not list:
        raise Refused(DAMAGED)
    if len(values) != count:
        raise Refused(MISCOUNTED)
    return [number(value) for value in values]


def number(value):
    if isinstance(value, str):
        return WORDS.get(value, UNKNOWN)
    return float(value) if isinstance(value, int | float) else UNKNOWN


def varints(data):
    while data:
        size = next((i for i, byte in enumerate(data) if byte < 128), None)
        if size is None or size > 8:
            raise Refused(DAMAGED)
        groups, data = data[: size + 1], data[size + 1 :]
        yield float(sum((byte & 127) << (7 * i) for i, byte in enumerate(groups)))


def row_of(formula, data, tail, device, task):
    """Return the row of one program as a list.

    `formula` has the parameters of ``_steps.Formula`` by name, `row` as a list.
    """
    slots = slots_of(formula, data)
    sources = {CONST: formula["constants"], SLOT: slots, TAIL: tail, DEVICE: device, TASK: task}
    values = []
    for code, a, b, c in formula["operations"]:
        if code in sources:
            values.append(float(sources[code][a]))
        elif code < LEAST:
            values.append(binary(code, values[a], values[b]))
        else:
            items = [values[i] for i in formula["lists"][a : a + b]]
            values.append(of_list(code, items, values[c]))
    row = list(formula["row"])
    for column, value, log in formula["outputs"]:
        row[column] = stored(values[value], log)
    return row


def binary(code, a, b):
    if code == ADD:
        return a + b
    if code == SUB:
        return a - b
    if code == MUL:
        return a * b
    if code == GCD:
        are_whole = all(1 <= one <= 2**53 and one.is_integer() for one in (a, b))
        return float(math.gcd(int(a), int(b))) if are_whole else UNKNOWN
    if b == 0:
        return UNKNOWN
    quotient = a / b
    return float(math.ceil(quotient)) if code == CEILDIV and math.isfinite(quotient) else quotient


def of_list(code, items, chosen):
    if code == PRODUCT:
        return math.prod(items, start=1.0)
    if code in (PREFIX, PICK, WITHIN) and math.isnan(chosen):
        return UNKNOWN
    if code == PREFIX:
        count = max(0, min(len(items), chosen))
        return math.prod(items[: int(count)], start=1.0)
    if code == WITHIN:
        found = 1.0
        for item in items:
            if not found * item <= chosen:
                break
            found *= item
        return found
    if code == PICK:
        inside = 0 <= chosen < len(items)
        return items[math.floor(chosen)] if inside else UNKNOWN
    known = [item for item in items if not math.isnan(item)]
    if not known:
        return UNKNOWN
    if code == SUM:
        total = known[0]
        for item in known[1:]:
            total += item
            if math.isnan(total):  # opposite infinities: what comes next starts anew
                total = UNKNOWN
        return total
    return max(known) if code == GREATEST else min(known)


def stored(value, log):
    if math.isnan(value):
        return 0.0
    value = max(-BOUND, min(BOUND, value))
    return math.copysign(math.log2(1 + abs(value)), value) if log else value
