"""Identity on the whole machine: groups of CPUs numbered by their lowest CPU.

Firmware ids repeat across sockets, so they never identify anything here. What identifies a core, a
die or a cache is the set of CPUs that form it; its number is the rank of that set.
"""

from __future__ import annotations

from collections.abc import Iterable

from drakit.core.cpuset import CpuSet


def ranked(groups: Iterable[CpuSet]) -> tuple[CpuSet, ...]:
    """Distinct non-empty groups, ordered by lowest CPU (and then by content)."""
    distinct = {group.mask: group for group in groups if group}
    return tuple(sorted(distinct.values(), key=lambda group: (group.min(), group.mask)))


def index_by_cpu(groups: Iterable[CpuSet]) -> dict[int, int]:
    """Which of the disjoint *groups* each CPU is in, by position."""
    return {cpu: index for index, group in enumerate(groups) for cpu in group}
