import sys
from pathlib import Path

# --import-mode=importlib leaves sys.path alone; shared helpers are next to this file.
sys.path.insert(0, str(Path(__file__).parent))
