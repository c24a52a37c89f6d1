"""Small files of profilers and tuners for the tests of this folder."""

import sys
from pathlib import Path

# --import-mode=importlib leaves sys.path alone; ktt_files.py and profiles.py are next to this file.
sys.path.insert(0, str(Path(__file__).parent))
