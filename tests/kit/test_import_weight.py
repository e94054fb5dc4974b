"""A driver runs on every node: what it imports is counted in megabytes there, so it is watched."""

from __future__ import annotations

import json
import subprocess
import sys

TOO_HEAVY = {
    "email", "html", "http", "multiprocessing", "prometheus_client", "rich", "tempfile", "unittest",
    "urllib.request", "wsgiref", "xml", "yaml",
}  # fmt: skip

PROBE = """
import sys
sys.path[:0] = {path!r}
import drakit.drivers.cpu.program, drakit.kit.host, drakit.wire.kube
import json
print(json.dumps(sorted(sys.modules)))
"""


def test_a_driver_imports_nothing_heavy() -> None:
    script = PROBE.format(path=sys.path)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert not TOO_HEAVY & set(json.loads(done.stdout))
