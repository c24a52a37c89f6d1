"""Traces as older releases of TVM wrote them."""

from tunedb.programs.metaschedule.trace import join_trace, split_trace


def as_of_0_13(trace):
    """Return the trace as TVM 0.13 wrote it."""
    instructions, decisions = join_trace(trace)
    old = [list(instruction) for instruction in instructions]
    for instruction in old:
        if instruction[0] == "GetSBlock":
            instruction[0] = "GetBlock"
        if instruction[0] == "Split":
            instruction[2] = instruction[2][:1]
    assert old != instructions
    return split_trace(old, decisions)


def without_upgrade(trace):
    """Return the trace with an instruction that TVM 0.27 no longer has."""
    instructions, decisions = join_trace(trace)
    gone = [*instructions[:1], ["SetAxisSeparator", ["b0"], [0, 1, [1]], []], *instructions[1:]]
    return split_trace(gone, [[index + 1, value] for index, value in decisions])
