"""Where the hand-written graphs and the public logs are."""

import sys
from pathlib import Path

import pytest
from public_logs import DATA

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def shared_data():
    """Public logs, where they lie beside the repository."""
    folder = DATA
    if not folder.is_dir():
        pytest.skip("the public logs are not here")
    return folder


@pytest.fixture(scope="session")
def goldens():
    """Graphs of one matrix product, as versions of TVM wrote them."""
    return Path(__file__).parent / "goldens"
