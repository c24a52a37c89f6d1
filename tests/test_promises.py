"""Each test that docs/security.md names exists, and each of its promises and attacks has one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_test_named_in_security_md_exists():
    tests = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    names = {name for _, name in tests}
    assert set(re.findall(r"`(tests/[^`]+\.py)::(\w+)`", TEXT)) - tests == set()
    assert set(re.findall(r"`(test_\w+)`", TEXT)) - names == set()


def test_every_promise_and_attack_has_a_test():
    rows = re.findall(r"^\| (\d+)(?:\. | \| ).+ \| (.+) \|$", TEXT, re.MULTILINE)
    numbers = [int(number) for number, _ in rows]
    assert numbers == [*range(1, 32), *range(1, 9)]
    assert [number for number, tests in rows if "`tests/" not in tests] == []
