"""Complete output of commands in files, so that people can review it.

``DRAKIT_UPDATE_GOLDEN=1 pytest tests/cli`` writes what is printed now; read the difference with
``git diff tests/cli/golden`` before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent / "golden"


def check_golden(name: str, text: str) -> None:
    """Compare with the file, or write it when asked to."""
    file = HERE / f"{name}.txt"
    if os.environ.get("DRAKIT_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    expected = file.read_text(encoding="utf-8") if file.exists() else ""
    assert text == expected, f"{file} differs; if the new text is better, see {__name__}"
