"""Draw terminal sessions of the documentation as SVG, into docs/pictures.

The commands of each picture run one after another in a new folder, with the module of the README
and a database of their own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
WIDTH = 118

#: Picture → the commands that it shows.
PICTURES = {
    "tune": ["tunedb tune model.py --trials 64"],
    "top": ["tunedb top matmul -k 5", "tunedb show 1"],
}
_MODULE = re.compile(r"```python\n(from tvm import te.*?)```", re.DOTALL)


def session(commands: list[str], folder: Path) -> Text:
    """Run commands of tunedb; return what a terminal shows."""
    environment = os.environ | {
        "COLUMNS": str(WIDTH),
        "FORCE_COLOR": "1",
        "TUNEDB_URL": "tune.db",
        "TUNEDB_PRIOR": "none",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    shown = Text()
    for command in commands:
        done = subprocess.run(  # noqa: S603
            shlex.split(command),
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
        shown.append(f"$ {command}\n", style="bold")
        shown.append_text(Text.from_ansi(done.stdout))
        shown.append("\n")
    return shown


def main() -> None:
    (module,) = _MODULE.findall((ROOT / "README.md").read_text("utf-8"))
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(module)
        for title, commands in PICTURES.items():
            console = Console(record=True, width=WIDTH, file=StringIO())
            console.print(session(commands, folder), end="", no_wrap=True, crop=False)
            drawn = console.export_svg(title="tunedb", theme=MONOKAI, unique_id=title)
            # The site loads nothing from elsewhere, fonts included.
            drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
            (FOLDER / f"{title}.svg").write_text(drawn)


if __name__ == "__main__":
    main()
