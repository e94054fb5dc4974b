"""``python -m drakit`` is the command ``drakit``."""

from __future__ import annotations

import sys

from drakit.cli import main

if __name__ == "__main__":
    sys.exit(main())
