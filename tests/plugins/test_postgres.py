from __future__ import annotations

import pytest
from tvm.s_tir import meta_schedule as ms

from tunedb.plugins.metaschedule import Database
from tunedb.plugins.metaschedule.database.handle import Candidate
from tunedb.records import Failure, FailureKind, Phase


@pytest.mark.stress
def test_second_handle_reads_what_the_first_stored_on_the_server(postgres_url, tools):
    mod = tools.matmul()
    first = Database(postgres_url, target=tools.llvm)
    workload = first.commit_workload(mod)
    records = [
        tools.record(mod, workload, [seconds], tile=tile)
        for seconds, tile in ((0.3, (4, 4)), (0.1, (8, 2)), (0.2, (2, 8)))
    ]
    first.commit_tuning_record(records[0])
    facts = [(r.trace, r.target, r.args_info, tuple(map(float, r.run_secs))) for r in records[1:]]
    failed = tools.record(mod, workload, None, tile=(16, 1)).trace
    failure = Failure(FailureKind.TIMEOUT, Phase.BUILD, "timeout", 30.0)
    facts.append((failed, tools.llvm, None, (1e10,), failure))
    first.record_batch([Candidate(workload, *each) for each in facts])
    second = Database(postgres_url, target=tools.llvm)
    top = second.get_top_k(second.commit_workload(mod), 10)
    assert tools.seconds(top) == [[0.1], [0.2], [0.3]]
    assert [r.as_json() for r in top] == [records[i].as_json() for i in (1, 2, 0)]
    assert len(second) == 4
    assert second.store.records.failures() == {"timeout": 1}
    assert second.query_schedule(mod, tools.llvm, "main") is not None
    pruned = ms.database.MemoryDatabase()
    second.dump_pruned(pruned)
    assert tools.seconds(pruned.get_all_tuning_records()) == [[0.1]]
    first.close()
    second.close()
