"""JSON and YAML output of commands."""

from __future__ import annotations

from typing import Any


def format_document(document: Any, output: str) -> str:
    """Return *document* as ``json`` or ``yaml``, with a newline at the end."""
    if output == "json":
        import json

        return json.dumps(document, indent=2) + "\n"
    import yaml

    # The C dumper, which PyYAML may have been built without, takes a tenth of the time.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))
