"""Partition of CPUs into groups from the sibling set that each CPU reports.

Every CPU has a file that lists the members of its core (die, cache, …). Normally all members list the
same set. Where they do not, the groups that agree are kept and the others are decided by the rule in
:func:`agree`, so that one damaged file affects its own group only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from drakit.core.cpuset import EMPTY, CpuSet


@dataclass(frozen=True, slots=True)
class Agreement:
    """Disjoint groups that contain every CPU, and the CPUs that reported another set."""

    groups: tuple[CpuSet, ...]
    disputed: CpuSet


def agree_on_cores(
    claims: Mapping[int, CpuSet | None], cores: Mapping[int, CpuSet], ids: Mapping[int, Hashable | None]
) -> Agreement:
    """As :func:`agree` for whole cores; *cores* has their threads by lowest CPU, which reports for all."""
    sound = _sound_partition(claims, cores)
    if sound is not None:
        return Agreement(sound, EMPTY)
    leaders = CpuSet(claims)
    result = agree({cpu: None if claim is None else claim & leaders for cpu, claim in claims.items()}, ids)
    groups = tuple(CpuSet.union(cores[cpu] for cpu in group) for group in result.groups)
    return Agreement(groups, result.disputed)


def _sound_partition(
    claims: Mapping[int, CpuSet | None], cores: Mapping[int, CpuSet]
) -> tuple[CpuSet, ...] | None:
    """The reported sets themselves, if they are disjoint and split no core; the usual case."""
    distinct: dict[int, CpuSet] = {}
    asked = 0
    for cpu, claim in claims.items():
        if claim is None:
            return None
        core, mask = cores[cpu].mask, claim.mask
        if core & ~mask:
            return None
        asked |= core
        distinct.setdefault(mask, claim)
    named, count = 0, 0
    for mask in distinct:
        named |= mask
        count += mask.bit_count()
    return tuple(distinct.values()) if named == asked and count == named.bit_count() else None


@dataclass(slots=True)
class _SiblingSet:
    """CPUs that all report the same set."""

    claim: int
    members: int
    ids: set[Hashable]


def agree(claims: Mapping[int, CpuSet | None], ids: Mapping[int, Hashable | None]) -> Agreement:
    """Partition the CPUs of *claims*; a reported set contains its own CPU, ``None``: nothing is reported.

    CPUs with the same set are together. Two such groups are merged if each lists members of the other
    or, if only one lists the other, if they have an id in common: sharing is assumed rather than
    missed, but never because of one damaged file alone. A CPU without a report joins the group that
    lists it, or the one with its id, or is alone.
    """
    silent = CpuSet(cpu for cpu, claim in claims.items() if claim is None)
    sets = _sibling_sets(claims)
    contested = 0
    for each in sets:
        if each.claim & ~silent.mask != each.members:
            contested |= each.claim | each.members
    settled = [each for each in sets if not each.members & contested]
    open_ = [each for each in sets if each.members & contested]
    for each in sets if silent else open_:
        members = CpuSet.from_mask(each.members)
        each.ids = {name for cpu in members if (name := ids.get(cpu)) is not None}
    reported = [(each.members, each.claim & ~silent.mask) for each in open_]
    groups = _merge(open_)
    found = {group.members for group in groups}
    disputed = sum(members for members, claim in reported if claim not in found)
    groups += settled
    _place_silent(silent, groups, ids)
    return Agreement(tuple(CpuSet.from_mask(group.members) for group in groups), CpuSet.from_mask(disputed))


def _sibling_sets(claims: Mapping[int, CpuSet | None]) -> list[_SiblingSet]:
    """CPUs by reported set, reduced to the CPUs of *claims*."""
    sets: dict[int, _SiblingSet] = {}
    asked = 0
    for cpu, claim in claims.items():
        asked |= 1 << cpu
        if claim is not None:
            each = sets.get(claim.mask)
            if each is None:
                each = sets[claim.mask] = _SiblingSet(claim.mask, 0, set())
            each.members |= 1 << cpu
    for each in sets.values():
        each.claim &= asked
    return list(sets.values())


def _merge(sets: list[_SiblingSet]) -> list[_SiblingSet]:
    """Merge until no two groups belong together."""
    groups: list[_SiblingSet] = []
    for each in sets:
        apart = []
        for group in groups:
            names, named = group.claim & each.members, each.claim & group.members
            if (names and named) or ((names or named) and group.ids & each.ids):
                each.claim |= group.claim
                each.members |= group.members
                each.ids |= group.ids
            else:
                apart.append(group)
        groups = [*apart, each]
    return groups


def _place_silent(silent: CpuSet, groups: list[_SiblingSet], ids: Mapping[int, Hashable | None]) -> None:
    """Add CPUs without a report to *groups*."""
    by_id: dict[Hashable, _SiblingSet] = {}
    naming: dict[int, list[_SiblingSet]] = {}
    for group in groups:
        for name in group.ids:
            by_id.setdefault(name, group)
        for cpu in CpuSet.from_mask(group.claim) & silent:
            naming.setdefault(cpu, []).append(group)
    for cpu in silent:
        name = ids.get(cpu)
        alike = None if name is None else by_id.get(name)
        candidates = naming.get(cpu)
        home = alike
        if candidates and not any(candidate is alike for candidate in candidates):
            home = candidates[0]
        if home is None:
            home = _SiblingSet(1 << cpu, 0, set())
            groups.append(home)
            if name is not None:
                by_id[name] = home
        home.members |= 1 << cpu
