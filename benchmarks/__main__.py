"""``make bench``: run all benchmarks in turn, or the named ones: ``python -m benchmarks choose``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> int:
    """Run the benchmarks named on the command line, or all."""
    there = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))
    wanted = sys.argv[1:] or there
    for name in wanted:
        if name not in there:
            print(f"unknown benchmark {name!r}; choose from {', '.join(there)}", file=sys.stderr)
            return 2
        print(f"\n== {name}", flush=True)
        sys.argv[1:] = []
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
