"""Search for devices with the result of kube-scheduler, without its exponential cases.

kube-scheduler tries devices depth first: claims, requests and devices in order; the first complete
solution wins. That order defines the result, so it is kept. States that differ only in *which* of
several interchangeable devices is taken fail in the same way, so each is explored once. The steps of
kube-scheduler are still counted exactly, because a skipped subtree is as large as the explored one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

from drakit.core.objects import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ResourceClaim
from drakit.scheduler.allocator.bounds import Bounds
from drakit.scheduler.allocator.constraints import DistinctAttributeByRequest
from drakit.scheduler.allocator.node_devices import EvaluationFailure, NodeDevices
from drakit.scheduler.allocator.search_state import Pick, SearchState, bits
from drakit.scheduler.allocator.symmetry import Symmetry
from drakit.scheduler.errors import SearchLimitError
from drakit.scheduler.recursion import deep_stack
from drakit.scheduler.requests import MAX_ALLOCATION_RESULTS, ClaimPlan, Variant

MAX_STATES_COUNTED: Final = 3_000
"""States explored while steps are counted; after that, bounds skip branches uncounted."""
MAX_STATES_EXPLORED: Final = 100_000
"""States explored before drakit gives up."""


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """The devices of one claim."""

    claim: ResourceClaim
    picks: tuple[Pick, ...]
    node_selector: NodeSelector | None


@dataclass(frozen=True, slots=True)
class AllocationFound:
    """The claims fit; kube-scheduler needs *steps* to find that."""

    claims: tuple[ClaimAllocation, ...]
    steps: int
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class AllocationImpossible:
    """The claims do not fit on the node; kube-scheduler needs *steps* to find that."""

    reason: str
    steps: int
    at_least: bool = False


class _Outcome(enum.Enum):
    FOUND = enum.auto()
    NONE = enum.auto()
    LIMIT_EXCEEDED = enum.auto()


def allocate(
    node_devices: NodeDevices, plans: tuple[ClaimPlan, ...]
) -> AllocationFound | AllocationImpossible:
    """Find devices for the claims on one node.

    Raises :class:`FatalError` if kube-scheduler fails the pod, and :class:`SearchLimitError` if
    drakit cannot find the result.
    """
    with deep_stack():  # the depth is the number of devices to find
        search = _Search(node_devices, plans)
        prunable = search.prunable
        at_least = False
        try:
            found = search.run(bounded=False, limit=MAX_STATES_COUNTED if prunable else MAX_STATES_EXPLORED)
            steps = search.steps
        except SearchLimitError as gave_up:
            search.reset()
            if not prunable:
                # An error may come first; in either case nothing fits.
                if search.bounds.infeasible():
                    return AllocationImpossible("cannot allocate all claims", gave_up.steps, at_least=True)
                raise
            found = search.run(bounded=True, limit=MAX_STATES_EXPLORED)
            steps, at_least = max(gave_up.steps, search.steps), True
        if not found:
            reason = "cannot allocate all claims"
            if any(pool.invalid for pool in node_devices.pools):
                reason = "invalid resource pools were encountered"
            return AllocationImpossible(reason, steps, at_least)
        return AllocationFound(search.allocations(), steps, at_least)


class _Search:
    def __init__(self, node_devices: NodeDevices, plans: tuple[ClaimPlan, ...]) -> None:
        self._node_devices = node_devices
        self._plans = plans
        self._state = SearchState(node_devices, plans)
        self._symmetry = Symmetry(self._state)
        self.bounds = Bounds(self._state)
        # Until 1.36 this constraint loses values on backtracking, so states cannot be compared.
        self._restorable = not any(
            isinstance(constraint, DistinctAttributeByRequest) and constraint.covers(variant.name)
            for constraints, plan in zip(self._state.constraints, plans, strict=True)
            for constraint in constraints
            for request in plan.requests
            for variant in request.variants
            if self._state.needed[variant.number] > 1
        )
        self.reset()

    def reset(self) -> None:
        """Start again."""
        self._state.reset()
        self.steps = 0
        self._work = 0
        self._failed = False
        self._bounded = False
        self._limit = MAX_STATES_EXPLORED
        self._dead: dict[Any, tuple[_Outcome, int]] = {}

    @property
    def prunable(self) -> bool:
        """Whether no branch can end in an error, so that branches may be skipped."""
        for variant in self._state.variants():
            if variant.wants_all and variant.claim.spec.devices.constraints:
                return False
            if any(isinstance(v, EvaluationFailure) for v in self._state.promising(variant).values()):
                return False
        return True

    def run(self, *, bounded: bool, limit: int) -> bool:
        """Search; if *bounded*, skip branches with too few devices without counting their steps."""
        self._bounded = bounded
        self._limit = limit
        if bounded and self.bounds.infeasible():
            return False
        return self._next(0, 0, None, 0, 0) is _Outcome.FOUND

    def _next(self, c: int, r: int, chosen: int | None, slot: int, start: int) -> _Outcome:
        """Find device *slot* of request *r* of claim *c*, beginning with candidate *start*."""
        if c >= len(self._plans):
            self.steps += 1
            return _Outcome.FOUND
        key = None
        if self._failed and self._restorable:
            key = self._symmetry.key(c, r, chosen, slot, start)
            known = self._dead.get(key)
            if known is not None:
                self.steps += known[1]
                return known[0]
        self._work += 1
        if self._work > self._limit:
            raise SearchLimitError(self.steps)
        before = self.steps
        self.steps += 1
        outcome = self._explore(c, r, chosen, slot, start)
        if outcome is not _Outcome.FOUND:
            self._failed = True
            if self._restorable:
                if key is None:
                    key = self._symmetry.key(c, r, chosen, slot, start)
                self._dead[key] = (outcome, self.steps - before)
        return outcome

    def _explore(  # noqa: PLR0911 - one return per outcome
        self, c: int, r: int, chosen: int | None, slot: int, start: int
    ) -> _Outcome:
        plan = self._plans[c]
        if r >= len(plan.requests):
            outcome = self._next(c + 1, 0, None, 0, 0)
            # Another choice in this claim may avoid too many devices in the next one.
            return _Outcome.NONE if outcome is _Outcome.LIMIT_EXCEEDED else outcome
        request = plan.requests[r]
        if chosen is None and request.is_list:
            return self._alternatives(c, r, len(request.variants))
        variant = request.variants[chosen or 0]
        needed = self._state.needed[variant.number]
        if variant.wants_all and needed == 0:
            return _Outcome.NONE
        if slot >= needed:
            return self._next(c, r + 1, None, 0, 0)
        if needed - slot > MAX_ALLOCATION_RESULTS - len(self._state.picks[c]):
            return _Outcome.LIMIT_EXCEEDED
        if self._bounded and self._too_few(c, r, variant, slot, start):
            return _Outcome.NONE
        if variant.wants_all:
            at = self._state.all[variant.number][slot]
            if not self._state.take(c, variant, at, insist=True):
                return _Outcome.NONE
            outcome = self._next(c, r, chosen, slot + 1, 0)
            if outcome is not _Outcome.FOUND:
                self._state.undo_take(c, at)
            return outcome
        return self._devices(c, r, chosen, slot, start, variant)

    def _too_few(self, c: int, r: int, variant: Variant, slot: int, start: int) -> bool:
        """Whether counting shows that this request or a later one cannot be satisfied."""
        if variant.wants_all and slot > 0:
            return False
        wanted = self._state.needed[variant.number] - slot
        return not self.bounds.enough(c, variant, start, wanted) or self.bounds.starved(c, r + 1)

    def _alternatives(self, c: int, r: int, count: int) -> _Outcome:
        all_too_many = True
        for chosen in range(count):
            outcome = self._next(c, r, chosen, 0, 0)
            if outcome is _Outcome.LIMIT_EXCEEDED:
                continue
            all_too_many = False
            if outcome is _Outcome.FOUND:
                return outcome
        return _Outcome.LIMIT_EXCEEDED if all_too_many else _Outcome.NONE

    def _devices(  # noqa: PLR0917 - a position in the search
        self, c: int, r: int, chosen: int | None, slot: int, start: int, variant: Variant
    ) -> _Outcome:
        state = self._state
        promising = state.promising(variant)
        failed: set[Any] = set()
        for at in bits(state.open_mask(c, variant) & (-1 << start)):
            verdict = promising[at]
            if isinstance(verdict, EvaluationFailure):
                raise verdict.error
            if self._bounded:
                # The search failed with an equivalent earlier device, after which at least the
                # same choices were left.
                device_class = self._symmetry.device_key(c, at)
                if device_class in failed:
                    continue
                failed.add(device_class)
            if not state.take(c, variant, at, insist=False):
                continue
            outcome = self._next(c, r, chosen, slot + 1, at + 1)
            if outcome is _Outcome.FOUND:
                return outcome
            state.undo_take(c, at)
            if outcome is _Outcome.LIMIT_EXCEEDED:
                return outcome
        return _Outcome.NONE

    def allocations(self) -> tuple[ClaimAllocation, ...]:
        """The devices that the search found."""
        return tuple(
            ClaimAllocation(plan.claim, tuple(picks), self._node_selector(picks))
            for plan, picks in zip(self._plans, self._state.picks, strict=True)
        )

    def _node_selector(self, picks: list[Pick]) -> NodeSelector | None:
        """The nodes that can use the chosen devices."""
        fields: list[NodeSelectorRequirement] = []
        expressions: list[NodeSelectorRequirement] = []
        for pick in picks:
            candidate = self._node_devices.candidates[pick.candidate]
            source = candidate.slice.spec
            own = bool(source.per_device_node_selection)
            node_name = candidate.device.node_name if own else source.node_name
            selector = candidate.device.node_selector if own else source.node_selector
            if node_name is not None or candidate.device.binds_to_node:
                name = self._node_devices.node.metadata.name
                only = NodeSelectorRequirement(key="metadata.name", operator="In", values=(name,))
                return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(only,)),))
            for term in selector.node_selector_terms if selector else ():
                _add_new(fields, term.match_fields)
                _add_new(expressions, term.match_expressions)
        if not fields and not expressions:
            return None
        term = NodeSelectorTerm(match_fields=tuple(fields), match_expressions=tuple(expressions))
        return NodeSelector(node_selector_terms=(term,))


def _add_new(into: list[NodeSelectorRequirement], more: tuple[NodeSelectorRequirement, ...]) -> None:
    for requirement in more:
        if not any(
            (known.key, known.operator, set(known.values))
            == (requirement.key, requirement.operator, set(requirement.values))
            for known in into
        ):
            into.append(requirement)
