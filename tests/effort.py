"""How much a run of the tests tries.

``few`` (`make test`) and ``all`` (`make stress`) take the same examples in every run; ``new``
(`make fuzz`) draws other ones each time, and what it finds becomes a fixed example.
"""

import os

import pytest

EFFORT = os.environ.get("TUNEDB_TESTS", "few")


def examples(most):
    """Return how many examples a property is tried on, of as many as a long run takes."""
    return max(5, most // 5) if EFFORT == "few" else most


def long(*values, **options):
    """Return a parameter of a test that the long run alone takes."""
    return pytest.param(*values, marks=pytest.mark.stress, **options)


def spread(values, few):
    """Return values as parameters: `few` of them, evenly spread, and the rest in the long run."""
    values = list(values)
    chosen = {round(number * (len(values) - 1) / max(1, few - 1)) for number in range(few)}
    return [value if number in chosen else long(value) for number, value in enumerate(values)]
