"""Index maps of traces: what each TVM wrote, and what 0.27 writes for it."""

from pathlib import Path

import orjson
import pytest

from tunedb.errors import FormatError
from tunedb.programs.metaschedule.index_maps import is_newest, read_index_map, written

#: ``tvm.ir.save_json`` of equal maps by three releases: packing, selections, and an inverse.
MAPS = {
    path.stem: path.read_text().splitlines()
    for path in sorted((Path(__file__).parent / "index_maps").glob("*.jsonl"))
}
#: A map of TVM 0.9, where an object may come before those that it refers to: i → (i // 4, i % 4).
OLDEST = {
    "root": 1,
    "nodes": [
        {"type_key": ""},
        {
            "type_key": "tir.IndexMap",
            "attrs": {"initial_indices": "2", "final_indices": "5", "inverse_index_map": "0"},
        },
        {"type_key": "Array", "data": [3]},
        {"type_key": "tir.Var", "attrs": {"dtype": "int32", "name": "i", "type_annotation": "4"}},
        {"type_key": "PrimType", "attrs": {"dtype": "int32"}},
        {"type_key": "Array", "data": [6, 8]},
        {"type_key": "tir.FloorDiv", "attrs": {"a": "3", "b": "7", "dtype": "int32"}},
        {"type_key": "IntImm", "attrs": {"dtype": "int32", "value": "4"}},
        {"type_key": "tir.FloorMod", "attrs": {"a": "3", "b": "9", "dtype": "int32"}},
        {"type_key": "IntImm", "attrs": {"dtype": "int32", "value": "4"}},
    ],
    "b64ndarrays": [],
    "attrs": {"tvm_version": "0.9.0"},
}


def with_last(kind, **attrs):
    return {"nodes": [*OLDEST["nodes"][:6], {"type_key": kind, "attrs": attrs}]}


def indented(text, version):
    """Return a graph as it stands in a trace, with another version."""
    graph = orjson.loads(text) | {"metadata": {"tvm_version": version}}
    return orjson.dumps(graph, option=orjson.OPT_INDENT_2).decode()


@pytest.mark.parametrize("there", MAPS)
@pytest.mark.parametrize("here", MAPS)
def test_written_converts_map_between_releases_bit_for_bit(here, there):
    assert len(MAPS[here]) == 4
    release = tuple(map(int, there.split(".")))
    for text, expected in zip(MAPS[here], MAPS[there], strict=True):
        version = orjson.loads(text)["metadata"]["tvm_version"]
        assert written(orjson.loads(text), release) == indented(expected, version)


def test_written_converts_map_of_tvm_0_9():
    read = read_index_map(orjson.loads(written(OLDEST)))
    (variable,) = read.initial
    assert (variable.kind, variable.value, variable.dtype) == ("Var", "i", "int32")
    assert [one.kind for one in read.final] == ["FloorDiv", "FloorMod"]
    assert all(one.operands[0] is variable and one.operands[1].value == 4 for one in read.final)
    assert read.inverse is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"nodes": nodes}, "cannot read an index map") for nodes in ([], [1, 2], None)),
        ({"root": 1e300}, "cannot read an index map"),
        ({"root": 0}, "expected an index map, not an object of type"),
        ({"root": -1}, "refers to the object -1"),
        (with_last("tir.Call"), "type Call"),
        # An operand that is the expression itself.
        (with_last("tir.Add", a="6", b="6", dtype="int32"), "nested too deep"),
    ],
)
def test_read_index_map_rejects_other_graphs(change, message):
    with pytest.raises(FormatError, match=message):
        read_index_map(OLDEST | change)


def test_is_newest_recognises_maps_without_integers():
    """Variables show the release: those of 0.25 have their data type as text."""
    graph = orjson.loads(MAPS["0.25"][0])
    nodes = [node for node in graph["nodes"] if node["type"] in ("None", "tirx.Var")]
    assert not is_newest({"root_index": 0, "nodes": nodes})
    assert is_newest(orjson.loads(MAPS["0.27"][0]))
    assert not is_newest(orjson.loads(MAPS["0.26"][0]))


def test_written_rejects_numbers_above_64_bits():
    number = {"type_key": "IntImm", "attrs": {"dtype": "int32", "value": str(2**70)}}
    nodes = [*OLDEST["nodes"][:7], number, *OLDEST["nodes"][8:]]
    with pytest.raises(FormatError, match="cannot write an index map"):
        written(OLDEST | {"nodes": nodes})
