"""The list of packages, from which the wheel is built."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_package_is_listed():
    """A wheel without one is found by the long tests, which build it."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {
        ".".join((package, *path.parent.relative_to(ROOT / folder).parts))
        for package, folder in config["package-dir"].items()
        for path in (ROOT / folder).rglob("__init__.py")
        # Links that let mypy see the mapped directories inside of the package.
        if path.resolve().is_relative_to((ROOT / folder).resolve())
    }
    assert len(found) > 20
    assert found == set(config["packages"])
    assert config["packages"] == sorted(config["packages"])
