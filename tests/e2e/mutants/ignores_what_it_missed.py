"""Looks at nothing that happened while it was away."""

from __future__ import annotations

from collections.abc import Sequence

from drakit.kit.runtime.nri_hooks import RuntimeHost
from drakit.wire.nri.values import Container, Pod, Update

_right = RuntimeHost.synchronize


async def _synchronize(
    self: RuntimeHost, pods: Sequence[Pod], containers: Sequence[Container]
) -> Sequence[Update]:
    await _right(self, pods, ())
    return ()


RuntimeHost.synchronize = _synchronize  # type: ignore[method-assign]
