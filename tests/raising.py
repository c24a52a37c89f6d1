"""Errors whose message is one line."""

from contextlib import contextmanager

import pytest


@contextmanager
def raises_line(kind, match=None):
    """Behave as pytest.raises, and refuse a message of several lines."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)
