"""Campaigns of a stranger against a victim: a short one and one of an hour (`make fuzz`).

A campaign runs in a process of its own: it bounds that process's memory, and ends it where a case
hangs.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")
KEPT = Path(__file__).parents[2] / "build" / "fuzz"


def run(seed, *bounds):
    """Run a campaign; its output is the test's."""
    words = [sys.executable, str(CAMPAIGN), "--seed", str(seed), *map(str, bounds)]
    done = subprocess.run(words, check=False)
    kept = [f"{CAMPAIGN} --replay {path}" for path in sorted(KEPT.glob(f"{seed}-*.zip"))]
    assert done.returncode == 0, "\n".join(["it found something, or was ended; replay:", *kept])


@pytest.mark.stress
def test_campaign_finds_no_harm():
    run(300, "--cases", 300)


@pytest.mark.fuzz
def test_campaign_of_an_hour_finds_no_harm():
    seconds = os.environ.get("TUNEDB_FUZZ_SECONDS", "3600")
    run(os.environ.get("TUNEDB_FUZZ_SEED", int(time.time())), "--seconds", seconds)
