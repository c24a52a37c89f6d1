"""Launches that were made up, and what the page says of them."""

import sys
from pathlib import Path

# --import-mode=importlib leaves sys.path alone; pages.py is next to this file.
sys.path.insert(0, str(Path(__file__).parent))
