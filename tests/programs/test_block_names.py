"""Traces with the block names of another module."""

import orjson

from tunedb.programs.metaschedule.block_names import with_block_names
from tunedb.records import Trace


def getting(*names):
    return orjson.dumps(
        [["GetSBlock", [], [name, "main"], [f"b{i}"]] for i, name in enumerate(names)]
    )


def test_names_of_blocks_are_replaced_in_both_parts():
    trace = Trace(getting("lv4_red", "root"), getting("lv4_red_rf", "lv4_redder"), b"[[],[],[]]")
    found = with_block_names(trace, {"lv4_red": "lv9_red"})
    assert found.sketch == getting("lv9_red", "root")
    assert found.tail == getting("lv9_red_rf", "lv4_redder")
    assert found.decisions is trace.decisions


def test_the_longest_name_of_a_block_is_its_origin():
    names = {"T_add": "T_multiply", "T_add_1": "T_add", "T_add_10": "T_add_2"}
    trace = Trace(getting("T_add_1_rf", "T_add_10", "T_add_rf", "T_add"), None, b"[]")
    found = with_block_names(trace, names)
    assert found.sketch == getting("T_add_rf", "T_add_2", "T_multiply_rf", "T_multiply")
    assert found.tail is None


def test_other_instructions_stay():
    body = b'[["Unroll",["l1"],[],[]],["GetSBlock",[],["C","main"],["b0"]]]'
    found = with_block_names(Trace(body, None, b"[]"), {"C": "D"})
    assert found.sketch == body.replace(b'"C"', b'"D"')
