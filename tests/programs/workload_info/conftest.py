from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def goldens():
    """Graphs of one matrix product, as versions of TVM wrote them."""
    return Path(__file__).parent / "goldens"
