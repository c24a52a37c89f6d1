import base64
import collections
import json
import pickle
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.formats.reading import line_refusal, refusal

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

#: What Python 2.7 wrote (protocol 0): pickle.dumps(("task", [1, 2])) and of a new-style object.
OF_PYTHON_2 = [
    b"(S'task'\np0\n(lp1\nI1\naI2\natp2\n.",
    b"ccopy_reg\n_reconstructor\np0\n(c__main__\nEntity\np1\nc__builtin__\nobject\np2\nNtp3\nRp4\n.",
    b"(i__main__\nOld\np0\n(dp1\nb.",
]

#: In place of AutoTVM's ConfigEntity: an object with a class and a state.
ENTITY = types.SimpleNamespace(index=7)
TASK = ["conv2d", [["TENSOR", [1, 3, 224, 224], "float32"], [1, 1]], {}]
RESULT = ((0.001, 0.002), 0, 1.5, 1546300800.0)


def line(protocol, *versions):
    """Return a line of AutoTVM's pickle protocol (TVM: python/tvm/autotvm/record.py)."""
    fields = [base64.b64encode(pickle.dumps(part, protocol)) for part in (TASK, ENTITY, RESULT)]
    return b"\t".join([b"cuda -model=1080ti", *fields, *map(str.encode, versions)])


class TestFiles:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_refusal_recognises_pickled_objects_of_every_protocol(self, protocol):
        for value in ([], {}, TASK, collections.OrderedDict(a=1), ENTITY):
            reason = refusal(pickle.dumps(value, protocol))
            assert "a pickle, which is refused because unpickling runs code; load it" in reason
            assert "\n" not in reason
        # Earlier ones begin values that are no objects like text.
        for value in (None, "text", RESULT) if protocol >= 2 else ():
            assert "a pickle" in refusal(pickle.dumps(value, protocol))

    @pytest.mark.parametrize("data", OF_PYTHON_2[1:])
    def test_refusal_recognises_files_of_python_2(self, data):
        assert "a pickle" in refusal(data)

    def test_refusal_explains_files_of_tenset(self):
        def head(module, name):
            start = b"\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00"
            texts = (b"\x8c" + bytes([len(text)]) + text for text in (module, name))
            return start + b"\x94".join(texts)

        features = refusal(head(b"tvm.auto_scheduler.dataset", b"Dataset"))
        assert "refused because unpickling runs code; it holds TenSet's features" in features
        assert "import the folder measure_records" in features
        tasks = refusal(head(b"tvm.auto_scheduler.search_task", b"SearchTask"))
        assert "it holds tasks and no measurements" in tasks

    @pytest.mark.parametrize(
        "head",
        [
            *(b"", b"\x80", b"\x80\x06", b"\x80\x01", b"[]", b"[0, [[[]]]]", b'{"i": []}'),
            *(b"# comment", b"(l", b"(london) is a town", b"(list", b"config\nfile\nof something"),
            *(b"cuda\nllvm\n", b"SQLite format 3\0", b"\x1f\x8b\x08", b"c", b"] q"),
        ],
    )
    def test_refusal_returns_none_for_other_files(self, head):
        assert refusal(head) is None

    @given(st.recursive(st.none() | st.integers() | st.text(), st.lists))
    def test_refusal_returns_none_for_json(self, value):
        assert refusal(json.dumps(value).encode()) is None
        assert line_refusal(json.dumps(value).encode()) is None


class TestLines:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_line_refusal_recognises_lines_with_and_without_versions(self, protocol):
        for versions in ((), ("0.2", "0.7.dev1")):
            for end in (b"", b"\n", b"\r\n"):
                reason = line_refusal(line(protocol, *versions) + end)
                assert "refused because unpickling runs code" in reason
                assert "autotvm.record.encode(inp, res, 'json')" in reason
                assert "\n" not in reason

    def test_line_refusal_recognises_lines_of_python_2(self):
        fields = [base64.b64encode(data) for data in OF_PYTHON_2]
        assert line_refusal(b"\t".join([b"llvm", *fields]))

    @pytest.mark.parametrize(
        "other",
        [
            *(b"", b"\t\t\t", b"2000\t1500\t1234\t5678"),  # numbers are base64 as well
            *(b"a\tb\tc\td\te\tf", b"network\ttask\tlatency\tseconds", b'{"a":\t1,\t"b":\t2}'),
            *(line(4, "0.2"), line(4, "0.2", "0.7", "more"), line(4)[:-3]),
        ],
    )
    def test_line_refusal_returns_none_for_other_lines(self, other):
        assert line_refusal(other) is None

    def test_line_refusal_returns_none_if_any_field_is_not_a_pickle(self):
        text = base64.b64encode(b"just text.").decode()
        for at in (1, 2, 3):
            fields = line(4).decode().split("\t")
            fields[at] = text
            assert line_refusal("\t".join(fields).encode()) is None
