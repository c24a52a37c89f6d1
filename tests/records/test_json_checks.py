import json

import pytest

from tunedb.errors import FormatError
from tunedb.json_checks import check_value, parse_json
from tunedb.limits import MAX_DEPTH


def nested(levels):
    value = 1
    for level in range(levels):
        value = [value] if level % 2 else {"key": value}
    return value


def test_check_value_accepts_values_within_limits():
    check_value({"a": [1, -(2**63), 2**63 - 1, 0.5, "text", None, True]}, "it")
    check_value(nested(MAX_DEPTH), "it")


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63) - 1, [{"a": 2**64}], float("nan"), [float("inf")], nested(MAX_DEPTH + 1)],
)
def test_check_value_rejects_values_beyond_limits(value):
    with pytest.raises(FormatError, match=r"^the target"):
        check_value(value, "the target")


def test_parse_json_rejects_only_integers_beyond_64_bits():
    for text in (b"[1e22]", b"[12345678901234567890.5]", b"[9223372036854775807]"):
        assert parse_json(text) == json.loads(text)
    for number in (2**63, -(2**63) - 1, 10**30):
        with pytest.raises(FormatError, match="a number that 64 bits cannot hold"):
            parse_json(b'{"a": [1, %d]}' % number)
