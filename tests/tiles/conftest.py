"""Lets the tests of tile programs import the module that only they share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
