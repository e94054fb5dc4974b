"""Groups of CPUs out of what each CPU says about itself.

Every CPU has a file that lists the members of its core (die, cache, …). On a sound machine all members
list the same set. Where they do not, the groups that agree are kept and the others are settled by the
rule in :func:`agree`, so that one damaged file disturbs its own group only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from drakit.core.cpuset import EMPTY, CpuSet


@dataclass(frozen=True, slots=True)
class Agreement:
    """Disjoint groups that cover every CPU asked, and the CPUs that claimed something else."""

    groups: tuple[CpuSet, ...]
    disputed: CpuSet


def agree_on_cores(
    claims: Mapping[int, CpuSet | None],
    cores: Mapping[int, CpuSet],
    ids: Mapping[int, Hashable | None],
) -> Agreement:
    """As :func:`agree`, where each core's lowest CPU speaks for the whole core.

    *cores* has the threads by lowest CPU. The groups are unions of whole cores.
    """
    sound = _sound_partition(claims, cores)
    if sound is not None:
        return Agreement(sound, EMPTY)
    leaders = CpuSet(claims)
    result = agree(
        {cpu: None if claim is None else claim & leaders for cpu, claim in claims.items()}, ids
    )
    groups = tuple(CpuSet.union(cores[cpu] for cpu in group) for group in result.groups)
    return Agreement(groups, result.disputed)


def _sound_partition(
    claims: Mapping[int, CpuSet | None], cores: Mapping[int, CpuSet]
) -> tuple[CpuSet, ...] | None:
    """The claims themselves, if they are disjoint and cut no core in two; the usual case."""
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
class _Voice:
    """CPUs that all claim the same set."""

    claim: int
    members: int
    ids: set[Hashable]


def agree(claims: Mapping[int, CpuSet | None], ids: Mapping[int, Hashable | None]) -> Agreement:
    """Partition the CPUs of *claims*; a claim contains its own CPU, ``None`` means no claim.

    CPUs with the same claim are together. Two such groups are merged when each names members of the
    other or, where only one names the other, when they have an id in common: sharing is assumed
    rather than overlooked, but never on the word of one damaged file alone. A CPU without a claim
    goes to the group that names it, or to the one with its id, or is alone.
    """
    silent = CpuSet(cpu for cpu, claim in claims.items() if claim is None)
    voices = _voices(claims)
    contested = 0
    for voice in voices:
        if voice.claim & ~silent.mask != voice.members:
            contested |= voice.claim | voice.members
    settled = [voice for voice in voices if not voice.members & contested]
    open_ = [voice for voice in voices if voice.members & contested]
    for voice in voices if silent else open_:
        members = CpuSet.from_mask(voice.members)
        voice.ids = {name for cpu in members if (name := ids.get(cpu)) is not None}
    said = [(voice.members, voice.claim & ~silent.mask) for voice in open_]
    groups = _merge(open_)
    found = {group.members for group in groups}
    disputed = sum(members for members, claim in said if claim not in found)
    groups += settled
    _place_silent(silent, groups, ids)
    return Agreement(
        tuple(CpuSet.from_mask(group.members) for group in groups), CpuSet.from_mask(disputed)
    )


def _voices(claims: Mapping[int, CpuSet | None]) -> list[_Voice]:
    """CPUs by claim, reduced to the CPUs that were asked."""
    voices: dict[int, _Voice] = {}
    asked = 0
    for cpu, claim in claims.items():
        asked |= 1 << cpu
        if claim is not None:
            voice = voices.get(claim.mask)
            if voice is None:
                voice = voices[claim.mask] = _Voice(claim.mask, 0, set())
            voice.members |= 1 << cpu
    for voice in voices.values():
        voice.claim &= asked
    return list(voices.values())


def _merge(voices: list[_Voice]) -> list[_Voice]:
    """Merge until no two groups belong together."""
    groups: list[_Voice] = []
    for voice in voices:
        apart = []
        for group in groups:
            names, named = group.claim & voice.members, voice.claim & group.members
            if (names and named) or ((names or named) and group.ids & voice.ids):
                voice.claim |= group.claim
                voice.members |= group.members
                voice.ids |= group.ids
            else:
                apart.append(group)
        groups = [*apart, voice]
    return groups


def _place_silent(silent: CpuSet, groups: list[_Voice], ids: Mapping[int, Hashable | None]) -> None:
    """Add CPUs that claim nothing to *groups*."""
    by_id: dict[Hashable, _Voice] = {}
    naming: dict[int, list[_Voice]] = {}
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
            home = _Voice(1 << cpu, 0, set())
            groups.append(home)
            if name is not None:
                by_id[name] = home
        home.members |= 1 << cpu
