"""Error numbers of the legacy logs."""

import pytest

from tunedb.errors import FormatError
from tunedb.formats.error_numbers import failed_context, failure_of


@pytest.mark.parametrize(
    ("number", "kind", "phase", "name"),
    [
        (1, "compile_error", "build", "INSTANTIATION_ERROR"),
        (2, "compile_error", "build", "COMPILE_HOST"),
        (3, "compile_error", "build", "COMPILE_DEVICE"),
        (4, "runtime_error", "run", "RUNTIME_DEVICE"),
        (5, "wrong_result", "run", "WRONG_ANSWER"),
        (6, "timeout", "build", "BUILD_TIMEOUT"),
        (7, "timeout", "run", "RUN_TIMEOUT"),
        (8, "unknown", "unknown", "UNKNOWN_ERROR"),
    ],
)
def test_failure_of_maps_each_error_number_to_kind_and_phase(number, kind, phase, name):
    failure = failure_of(number)
    assert (failure.kind, failure.phase, failure.message) == (kind, phase, name)
    assert failed_context(b'{"log":"ansor"}', number) == b'{"error_no":%d,"log":"ansor"}' % number


@pytest.mark.parametrize("number", [0, 9, -1, 2**70, True, 1.0, "1", None, [1]])
def test_failure_of_rejects_unknown_error_numbers(number):
    with pytest.raises(FormatError, match="0 \\(none\\) to 8"):
        failure_of(number)
