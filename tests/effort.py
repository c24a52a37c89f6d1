"""How much a run of the tests tries.

``few`` (`make test`) and ``all`` (`make stress`) take the same examples in every run; ``new``
(`make fuzz`) draws other ones each time, and what it finds becomes a fixed example.
"""

import os

EFFORT = os.environ.get("TUNEDB_TESTS", "few")


def examples(most):
    """Return how many examples a property is tried on, of as many as a long run takes."""
    return max(5, most // 5) if EFFORT == "few" else most
