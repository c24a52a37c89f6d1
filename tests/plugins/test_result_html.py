"""The result of a run in a notebook."""

import pytest

pytest.importorskip("tvm")

from builders import make_measurement

from tunedb.plugins.metaschedule.tuning.progress import Costs, TaskProgress
from tunedb.plugins.metaschedule.tuning.results import TaskResult, TuningResult
from tunedb.records import Origin, Source
from tunedb.results import Record


def test_html_of_a_result_lists_its_tasks_in_a_table():
    measurement = make_measurement(0, (0.25,), origin=Origin.WARM)
    record = Record(1, 1, 1, measurement, Source("tuning"), 0.25)
    tasks = (
        TaskResult(TaskProgress("conv<2d>", 48), 1, record, calls=3),
        TaskResult(TaskProgress("softmax", 16), 2, None, problem="no design space"),
    )
    html = TuningResult(None, "llvm", tasks, 64, 0, 12.5, Costs())._repr_html_()
    assert "64 trials in 12.5 s for llvm" in html
    cells = [row.split("<td>") for row in html.split("<tr>")[2:]]
    found = [[cell.split("</td>")[0] for cell in row[1:]] for row in cells]
    assert found == [
        ["conv&lt;2d&gt;", "3", "48", "0.25", "warm", ""],
        ["softmax", "", "16", "", "", "no design space"],
    ]
