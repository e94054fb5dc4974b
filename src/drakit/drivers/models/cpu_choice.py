"""Choice of CPUs for a claim: the best ``n`` of a group's free CPUs.

Order of preference; the first difference decides:

1. fewest NUMA nodes,
2. fewest sockets,
3. fewest last-level caches,
4. whole cores: fewest partially taken cores, then fewest of these that were entirely free before,
5. best fit, to keep large free blocks: fewest CPUs left free in the NUMA nodes used, then in the
   sockets, the last-level caches, and the cores,
6. the lowest-numbered parts and cores; equal input always gives an equal result.

A claim's :class:`~drakit.drivers.models.cpu_policy.CpuPolicy` changes the order in two places.
``sameL3: required`` puts 3 first and rejects more than one. ``placement: spread`` replaces 4 by: most
cores, then fewest threads of these cores that are not free. ``wholeCores`` and ``distribute`` restrict
the CPUs considered and keep the order.

Nodes, sockets and caches are nested into a tree (:mod:`~drakit.drivers.models.cpu_topology`). Every
criterion is a sum over the parts used and the cores taken from, so the whole order is one integer with the
criteria as digits, and the best choice is the cheapest way to collect ``n`` CPUs on one walk over the tree: a
knapsack whose only state is the number collected so far. It is exact and takes at most (CPUs of the group)
x n steps, usually far fewer: paths that need more nodes than necessary are not followed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from drakit.core.cpuset import CpuSet
from drakit.drivers.models.cpu_policy import DEFAULT, CorePlacement, CpuPolicy, Distribute, SameL3
from drakit.drivers.models.cpu_topology import (
    CODE_BITS,
    CpuTopology,
    TopologyLeaf,
    TopologyLevel,
    TopologyPart,
    codes_of,
    lowest,
)
from drakit.kit.driver import RejectedError

_DIGIT: Final = 18
"""Bits of each criterion: more than any sum of CPU counts needs (``cpuset.MAX_CPU``)."""
_COUNT: Final = 8
"""Digits 8, 7, 6: how many parts of the first, second and third level."""
_PART_CORES: Final = 1 << 5 * _DIGIT
_BROKEN_CORES: Final = 1 << 4 * _DIGIT
_LEFT: Final = 3
"""Digits 3, 2, 1: CPUs left free in these parts. Digit 0: left free on these cores."""

CoreRule = Callable[[int, int], Sequence[tuple[int, int]]]
"""From the free threads and all threads of a core to the numbers that can be taken, with their cost."""


def _packed(free: int, threads: int) -> list[tuple[int, int]]:
    broken = _PART_CORES + (_BROKEN_CORES if free == threads else 0)
    return [(take, 0 if take == threads else broken + free - take) for take in range(free, 0, -1)]


def _spread(free: int, threads: int) -> list[tuple[int, int]]:
    return [
        (take, (take - 1) * _PART_CORES + (threads - free) * _BROKEN_CORES) for take in range(1, free + 1)
    ]


def _whole(free: int, threads: int) -> list[tuple[int, int]]:
    return [(threads, 0)] if free == threads else []


def _core_sizes(counts: int) -> Iterable[tuple[int, int, int]]:
    """Core counts of a leaf as (threads, free, count), largest cores first."""
    threads, free, found = 1, 1, []
    while counts:
        count = counts & (1 << CODE_BITS) - 1
        if count:
            found.append((threads, free, count))
        counts >>= CODE_BITS
        threads, free = (threads, free + 1) if free < threads else (threads + 1, 1)
    return reversed(found)


class _Picks(NamedTuple):
    """Linked list of threads taken from cores of a size, newest first."""

    threads: int
    free: int
    take: int
    before: _Picks | None


@lru_cache(maxsize=128)
def _ways(counts: int, most: int, rule: CoreRule) -> list[tuple[int, _Picks | None] | None]:
    """For 0, 1, … *most* CPUs of a leaf's cores: the least cost, and the picks.

    Equal cores are interchangeable, so the results are few and cached.
    """
    best: list[tuple[int, _Picks | None] | None] = [(0, None)] + [None] * most
    for threads, free, count in _core_sizes(counts):
        options = [(take, cost) for take, cost in rule(free, threads) if take <= most]
        for _ in range(min(count, most) if options else 0):
            for total in range(most, 0, -1):
                for take, cost in options:
                    before = best[total - take] if take <= total else None
                    if before is not None:
                        now = best[total]
                        if now is None or before[0] + cost < now[0]:
                            best[total] = (before[0] + cost, _Picks(threads, free, take, before[1]))
    return best


def _core_counts(leaf: TopologyLeaf, free: int) -> int:
    return sum([codes[(free & core).bit_count()] for core, codes in leaf.cores])


def _pick(leaf: TopologyLeaf, free: int, picks: _Picks | None) -> int:
    """The CPUs of *picks* in this leaf: most threads from the lowest cores of each size."""
    cores: dict[int, list[int]] = {}
    for core, codes in reversed(leaf.cores):
        cores.setdefault(codes[(free & core).bit_count()], []).append(free & core)
    takes: list[tuple[int, int]] = []
    while picks is not None:
        takes.append((picks.take, codes_of(picks.threads)[picks.free]))
        picks = picks.before
    chosen = 0
    for take, code in sorted(takes, reverse=True):
        core = cores[code].pop()
        for _ in range(take):
            chosen |= core & -core
            core &= core - 1
    return chosen


class _Trail(NamedTuple):
    """Linked list of CPU counts taken from leaves, newest first."""

    leaf: TopologyLeaf
    take: int
    before: _Trail | None


_States = dict[int, tuple[int, _Trail | None]]
"""By number of CPUs collected so far: the least cost, and its trail."""


class _Walk:
    """Search for *count* of the *free* CPUs."""

    def __init__(
        self, topology: CpuTopology, free: int, count: int, order: Sequence[TopologyLevel], rule: CoreRule
    ) -> None:
        self.tree, self.free, self.count, self.rule = topology.tree, free, count, rule
        self.first = order[0]
        self.weights = {
            level: (1 << (_COUNT - rank) * _DIGIT, 1 << (_LEFT - rank) * _DIGIT)
            for rank, level in enumerate(order)
        }
        rooms = [(free & mask).bit_count() for mask in topology.parts[self.first]]
        self.room = [0, *accumulate(sorted(rooms, reverse=True))]
        """The most CPUs that 0, 1, 2, … parts of the first level have together."""
        self.fits = any((free & leaf.mask).bit_count() >= count for leaf in topology.leaves)
        """Whether one leaf has enough CPUs: no choice from two leaves is then as good."""
        self.limit = 0
        """How many parts of the first level may be opened."""
        self.least = 1
        """The fewest CPUs to take from a leaf."""
        self.rest = 0
        """CPUs in leaves of the current first-level part that are not visited yet."""

    def best(self, limit: int | None = None) -> int | None:
        """The cheapest choice with at most *limit* parts of the first level, if any."""
        enough = bisect_left(self.room, self.count)
        if self.fits and (found := self._attempt(1, self.count)) is not None:
            return found
        for parts in range(enough, min(limit or len(self.room), len(self.room) - 1) + 1):
            # Whole cores of several sizes may need more parts than the number of CPUs suggests.
            if (found := self._attempt(parts, 1)) is not None:
                return found
        return None

    def _attempt(self, limit: int, least: int) -> int | None:
        self.limit, self.least = limit, least
        states: _States = {0: (0, None)}
        for part in self.tree:
            states = self._visit(part, states)
        if self.count not in states:
            return None
        trail = states[self.count][1]
        chosen = 0
        while trail is not None:
            way = self._ways(trail.leaf)[trail.take]
            assert way is not None
            chosen |= _pick(trail.leaf, self.free, way[1])
            trail = trail.before
        return chosen

    def _visit(self, part: TopologyPart | TopologyLeaf, states: _States) -> _States:
        here = (part.mask & self.free).bit_count()
        if not here:
            return states
        if isinstance(part, TopologyLeaf):
            return self._take(part, here, states)
        count_weight, left_weight = self.weights[part.level]
        price = count_weight + here * left_weight
        inside = {total: (cost + price, trail) for total, (cost, trail) in states.items()}
        if part.level is self.first:
            self.rest = here
            inside = {
                total: state
                for total, state in inside.items()
                if (further := self._further(state[0])) >= 0
                and self.count - total <= here + self.room[further]
            }
        if inside:
            for inner in part.inner:
                inside = self._visit(inner, inside)
        for total, state in states.items():  # on a tie, without this part
            if total not in inside or state[0] <= inside[total][0]:
                inside[total] = state
        return inside

    def _take(self, leaf: TopologyLeaf, here: int, states: _States) -> _States:
        self.rest -= here
        ways = self._ways(leaf)
        found: _States = {}
        for total, (cost, trail) in states.items():
            needed = self.count - total
            later = self.rest + self.room[self._further(cost)]
            if needed <= later:
                _keep(found, total, cost, trail)
            for take in range(max(self.least, needed - later), min(here, needed) + 1):
                way = ways[take]
                if way is not None:
                    _keep(found, total + take, cost + way[0], _Trail(leaf, take, trail))
        return found

    def _further(self, cost: int) -> int:
        """How many more parts of the first level may be used at this cost."""
        return self.limit - (cost >> _COUNT * _DIGIT)

    def _ways(self, leaf: TopologyLeaf) -> list[tuple[int, _Picks | None] | None]:
        most = min(self.count, (self.free & leaf.mask).bit_count())
        return _ways(_core_counts(leaf, self.free), most, self.rule)


def _keep(states: _States, total: int, cost: int, trail: _Trail | None) -> None:
    if total not in states or cost < states[total][0]:
        states[total] = (cost, trail)


_ORDER: Final = (TopologyLevel.NUMA, TopologyLevel.SOCKET, TopologyLevel.LLC)
_ORDER_SAME_L3: Final = (TopologyLevel.LLC, TopologyLevel.NUMA, TopologyLevel.SOCKET)


def choose(
    topology: CpuTopology, group: CpuSet, free: CpuSet, count: int, policy: CpuPolicy = DEFAULT
) -> CpuSet:
    """The best *count* CPUs out of those that are *free* and in the *group*.

    The result has exactly *count* CPUs, or with ``wholeCores`` as many more as whole cores need.
    Raises :class:`RejectedError` if that is impossible.
    """
    if count < 1:
        raise RejectedError(f"{count} is not a valid number of CPUs; request 1 or more", reason="policy")
    usable = group.mask & free.mask & topology.online
    if usable.bit_count() < count:
        raise RejectedError(
            f"{count} CPUs are requested, but only {usable.bit_count()} of {len(group)} are free "
            f"({CpuSet.from_mask(usable) or 'none'})",
            reason="capacity",
        )
    rule: CoreRule = _spread if policy.placement is CorePlacement.SPREAD else _packed
    if policy.whole_cores:
        count = _rounded_up(topology, usable, count)
        rule = _whole
    if policy.distribute is Distribute.NUMA:
        return CpuSet.from_mask(_distributed(topology, usable, count, rule))
    if policy.same_l3 is SameL3.REQUIRED:
        return CpuSet.from_mask(_in_one_cache(topology, usable, count, rule))
    return CpuSet.from_mask(_found(topology, usable, count, rule))


def _found(topology: CpuTopology, usable: int, count: int, rule: CoreRule) -> int:
    found = _Walk(topology, usable, count, _ORDER, rule).best()
    if found is None:
        raise AssertionError(f"cannot choose {count} of {CpuSet.from_mask(usable)}")
    return found


def _in_one_cache(topology: CpuTopology, usable: int, count: int, rule: CoreRule) -> int:
    found = _Walk(topology, usable, count, _ORDER_SAME_L3, rule).best(limit=1)
    if found is None:
        largest = max((usable & mask).bit_count() for mask in topology.parts[TopologyLevel.LLC])
        raise RejectedError(
            f"{count} CPUs that share a last-level cache are requested (sameL3: required), but no "
            f"cache has more than {largest} such CPUs free; request fewer, or sameL3: preferred",
            reason="policy",
        )
    return found


def _entirely_free(topology: CpuTopology, usable: int) -> list[int]:
    return [core for core in topology.cores if usable & core == core]


def _rounded_up(topology: CpuTopology, usable: int, count: int) -> int:
    """The smallest sum of entirely free cores' threads in *usable* that is at least *count*."""
    sums = 1  # bit k: some cores have k threads together
    sizes = [core.bit_count() for core in _entirely_free(topology, usable)]
    for size in sizes:
        sums |= sums << size
    enough = sums >> count
    if not enough:
        raise RejectedError(
            f"{count} CPUs in whole cores are requested (wholeCores: true), but only {sum(sizes)} "
            f"are on entirely free cores; request fewer, or remove wholeCores",
            reason="policy",
        )
    return count + lowest(enough) - 1


def _distributed(topology: CpuTopology, usable: int, count: int, rule: CoreRule) -> int:
    """Equal shares of all NUMA nodes of the group, as far as they have them; the best of each."""
    nodes = [usable & mask for mask in topology.parts[TopologyLevel.NUMA] if usable & mask]
    portions = [_portions(topology, node, rule) for node in nodes]
    shares = [0] * len(nodes)
    while sum(shares) < count:
        # The node with the smallest share; then the one with most CPUs left, then the first.
        at = min((i for i in range(len(nodes)) if portions[i]), key=lambda i: (shares[i], -sum(portions[i])))
        shares[at] += portions[at].pop()
    return sum(
        _found(topology, node, share, rule) for node, share in zip(nodes, shares, strict=True) if share
    )


def _portions(topology: CpuTopology, node: int, rule: CoreRule) -> list[int]:
    """Portions in which a node's CPUs can be taken: single CPUs, or whole cores."""
    if rule is not _whole:
        return [1] * node.bit_count()
    return sorted(core.bit_count() for core in _entirely_free(topology, node))
