"""The tools that write programs, by the formats of workloads."""

from tunedb.programs import TOOL_NAMES, tool_of
from tunedb.records import WorkloadFormat


def test_each_format_with_programs_has_one_tool():
    assert set(TOOL_NAMES) == set(WorkloadFormat) - {WorkloadFormat.T1}
    assert all(format in tool_of(format).signatures for format in TOOL_NAMES)
