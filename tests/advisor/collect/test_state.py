import pytest

from tunedb.advisor.collect.state import CollectState, locked
from tunedb.errors import BusyError


@pytest.mark.parametrize("cut", [1, 2, 10, 19])
def test_state_ignores_truncated_last_line(tmp_path, cut):
    state = CollectState(tmp_path)
    state.finish("a", {"value": 1})
    state.finish("b", {"value": 2})
    path = tmp_path / "state.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    state = CollectState(tmp_path)
    assert state.get("a") == {"key": "a", "value": 1}
    assert state.get("b") is None
    state.finish("c", {"value": [1.5, None]})
    state = CollectState(tmp_path)
    assert state.get("c") == {"key": "c", "value": [1.5, None]}
    assert state.get("a") == {"key": "a", "value": 1}


def test_state_returns_last_entry_and_forgets_failures(tmp_path):
    state = CollectState(tmp_path)
    state.finish("a", {"failure": None, "n": 1})
    state.finish("a", {"failure": None, "n": 2})
    state.finish("b", {"failure": ["timeout"]})
    state = CollectState(tmp_path)
    assert state.get("a")["n"] == 2
    state.forget_failures()
    assert state.get("a")
    assert state.get("b") is None


def test_locked_rejects_a_second_run_in_the_folder(tmp_path):
    folder = tmp_path / "new" / "work"
    with locked(folder), pytest.raises(BusyError, match="another run uses it"), locked(folder):
        pass
    with locked(folder):
        pass
