"""Where the hand-written graphs and the public logs are."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def goldens():
    """Graphs of one matrix product, as versions of TVM wrote them."""
    return Path(__file__).parent / "goldens"
