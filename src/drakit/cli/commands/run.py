"""``drakit run``: a command on a claim, on this machine, without a cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from drakit.cli.errors import Problem
from drakit.cli.local_node import (
    LocalDriver,
    add_options,
    cpus_of,
    driver_for,
    held_words,
    local_node,
    marks_for,
    node_drivers,
)
from drakit.cluster.claim_file import ClaimFile, read_claims
from drakit.core.cpuset import CpuSet
from drakit.core.objects import ResourceClaim
from drakit.core.quantity import Quantity
from drakit.draw.machine_map import draw
from drakit.draw.memory_map import memory_lines
from drakit.draw.terminal import Terminal
from drakit.drivers.cpumem.desired import desired
from drakit.kit.driver import (
    ClaimUse,
    ContainerView,
    DesiredResources,
    PreparedClaim,
    RejectedError,
)
from drakit.local import confine
from drakit.local.node import DoesNotFitError, LocalNode, Taken, fresh_claim
from drakit.scheduler.errors import FatalError, SearchLimitError

NO_FIT: Final = 1
_POLL_SECONDS: Final = 0.5
_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)

EXAMPLES: Final = """\
examples:
  drakit run -f claim.yaml -- make -j4        the command runs on exactly the claim's CPUs
  drakit run --cpus 2 -- ./benchmark          the same without a file: two CPUs of one NUMA node
  drakit run --cpus 2 --memory 1Gi --hugepages 2Mi=64Mi -- ./server     all on one NUMA node
  drakit run -f claim.yaml --dry-run          show which CPUs it would be
  drakit run -f claim.yaml --wait -- ./job    wait until they are free
  drakit ps                                   who holds what

The file is the one for the cluster: a ResourceClaim, a ResourceClaimTemplate, or a Pod with its
claims, of dra.cpu or of dra.cpumem. What was taken is given back when the command and everything
it started have ended, also after kill -9. The exit code is the command's, 1 if the claim does not
fit, 2 for bad input, 126 or 127 if the command cannot be started.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("-f", "--filename", metavar="FILE", help="the claim (- for standard input)")
    parser.add_argument("--cpus", metavar="N", type=int, help="a claim of N CPUs, without a file")
    parser.add_argument(
        "--memory", metavar="AMOUNT", help="a claim of so much memory (1Gi), without a file"
    )
    parser.add_argument(
        "--hugepages",
        metavar="SIZE=AMOUNT",
        action="append",
        default=[],
        help="hugepages of a size (2Mi=64Mi), without a file; may be given for several sizes",
    )
    parser.add_argument("--wait", action="store_true", help="wait until the claim fits")
    parser.add_argument("--dry-run", action="store_true", help="show the CPUs and do nothing")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    add_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- command and its arguments")


def run(options: argparse.Namespace) -> int:
    """Take the claim, run the command on it, give it back."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command and not options.dry_run:
        raise Problem("no command given", "put it behind --: drakit run -f claim.yaml -- command")
    file = _claims(options)
    driver, node = local_node(options, file.classes, driver_for(file.claims, file.classes))
    for warning in () if options.quiet else node_drivers(options).warnings:
        print(f"drakit run: warning: {warning}", file=sys.stderr)
    claims = [fresh_claim(claim) for claim in file.claims]
    try:
        if options.dry_run:
            return asyncio.run(_show(driver, node, claims))
        taken = asyncio.run(_take(node, claims, options))
    except DoesNotFitError as error:
        print(explain_misfit(driver, error), file=sys.stderr)
        return NO_FIT
    except RejectedError as error:
        print(f"drakit run: {error}", file=sys.stderr)
        return NO_FIT
    except (FatalError, SearchLimitError) as error:
        raise Problem(
            str(error), "correct the claim; drakit lint looks for such mistakes"
        ) from None
    except OSError as error:
        raise Problem(f"cannot keep the claim: {error}", "give another --state-dir") from None
    return _run_on(driver, node, taken, command, quiet=options.quiet)


def _claims(options: argparse.Namespace) -> ClaimFile:
    amounts = options.memory is not None or bool(options.hugepages)
    if options.filename is not None:
        if amounts or options.cpus is not None:
            raise Problem(
                "a file and amounts are given", "give the claim with -f, or by --cpus and the like"
            )
        return read_claims(options.filename)
    if options.cpus is None and not amounts:
        raise Problem("no claim is given", "give a file with -f, or --cpus, --memory, --hugepages")
    if options.cpus is not None and options.cpus < 1:
        raise Problem(f"--cpus {options.cpus}", "ask for one or more")
    if amounts:
        return ClaimFile((amounts_claim(_requests(options)),), ())
    return ClaimFile((simple_claim(options.cpus, options.cpu_device_mode),), ())


def _requests(options: argparse.Namespace) -> dict[str, Quantity]:
    """The capacities that the options ask for, by key."""
    from drakit.drivers.cpumem.hugepages.sizes import parse_size
    from drakit.drivers.cpumem.kinds import CPU, MEMORY, hugepages

    wanted: dict[str, Quantity] = {}
    if options.cpus is not None:
        wanted[CPU.key] = Quantity(options.cpus)
    try:
        if options.memory is not None:
            wanted[MEMORY.key] = Quantity(options.memory)
        for text in options.hugepages:
            size, _, amount = text.partition("=")
            wanted[hugepages(parse_size(size)).key] = Quantity(amount)
    except ValueError as error:
        raise Problem(str(error), "write --memory 1Gi, --hugepages 2Mi=64Mi") from None
    for key, amount in wanted.items():
        if amount.nanos <= 0:
            raise Problem(f"{amount} of {key}", "ask for more than nothing")
    return wanted


def amounts_claim(requests: Mapping[str, Quantity]) -> ResourceClaim:
    """A claim of CPUs, memory and hugepages of one NUMA node, by capacity key."""
    from drakit.drivers.cpumem.kinds import DRIVER

    return _claim("amounts", "amounts", DRIVER, requests)


def simple_claim(cpus: int, mode: str = "grouped") -> ResourceClaim:
    """The claim that a number of CPUs stands for."""
    requests = {} if mode == "individual" else {"dra.cpu/cpu": Quantity(cpus)}
    count = cpus if mode == "individual" else 1
    return _claim(f"{cpus}-cpus", "cpus", "dra.cpu", requests, count=count)


def _claim(
    name: str, request: str, class_name: str, capacity: Mapping[str, Quantity], *, count: int = 1
) -> ResourceClaim:
    from drakit.core.objects import (
        CapacityRequirements,
        DeviceClaim,
        DeviceRequest,
        ExactRequest,
        ObjectMeta,
        ResourceClaimSpec,
    )

    wish = (
        ExactRequest(
            device_class_name=class_name, capacity=CapacityRequirements(requests=dict(capacity))
        )
        if capacity
        else ExactRequest(device_class_name=class_name, count=count)
    )
    requests = (DeviceRequest(name=request, exactly=wish),)
    return ResourceClaim(
        metadata=ObjectMeta(name=name),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)),
    )


async def _take(
    node: LocalNode, claims: Sequence[ResourceClaim], options: argparse.Namespace
) -> tuple[Taken, ...]:
    told = False
    while True:
        try:
            return await node.take(claims)
        except (DoesNotFitError, RejectedError):
            if not options.wait:
                raise
        if not told and not options.quiet:
            print(
                "drakit run: does not fit now; waiting (drakit ps shows who holds what)",
                file=sys.stderr,
            )
            told = True
        await asyncio.sleep(_POLL_SECONDS)


async def _show(driver: LocalDriver, node: LocalNode, claims: Sequence[ResourceClaim]) -> int:
    prepared_claims = await node.look()
    entries = node.assignment(claims, prepared_claims)
    terminal = Terminal.of(sys.stdout)
    for entry in entries:
        print(f"{entry.name}: {held_words(entry)} ({_devices(entry)})")
    print(
        draw(
            cpus_of(driver).machine,
            marks_for([*prepared_claims, *entries]),
            width=terminal.width,
            color=terminal.color,
            unicode=terminal.unicode,
        ),
        end="",
    )
    if driver.node_amounts:
        print("\n".join(memory_lines(driver.node_amounts, [*prepared_claims, *entries], terminal)))
    return 0


def _devices(entry: PreparedClaim) -> str:
    return ", ".join(dict.fromkeys(prepared.device for prepared in entry.devices))


def explain_misfit(driver: LocalDriver, problem: DoesNotFitError) -> str:
    """Why the claims do not fit here now, and what would help: what ``drakit explain`` would say."""
    node, prepared_claims, report = cpus_of(driver), problem.prepared_claims, problem.report()
    rows = ["drakit run: it does not fit on this machine now"]
    rows += [f"  {finding}" for finding in report.findings]
    rows += [f"  {entry.name} holds {held_words(entry)}" for entry in prepared_claims]
    if node.reserved:
        rows.append(f"  reserved, or not this process's: CPUs {node.reserved}")
    if node.held_back:
        rows.append(f"  kept for everybody else: CPUs {node.held_back} (--min-shared-cpus)")
    rows += [f"  it would fit: {remedy}" for remedy in report.remedies]
    if prepared_claims.entries:
        rows.append("  or wait with --wait")
    return "\n".join(rows)


# -- the command -------------------------------------------------------------------------------------


def _run_on(
    driver: LocalDriver, node: LocalNode, taken: Sequence[Taken], command: list[str], *, quiet: bool
) -> int:
    group = None
    try:
        uses = tuple(ClaimUse(one.entry, one.entry.devices) for one in taken)
        desired = _desired(driver, node, uses)
        cpus = desired.cpus or CpuSet(os.sched_getaffinity(0))
        limits = _limits(driver, uses)
        name = taken[0].entry.uid
        group = confine.make_group("/sys/fs/cgroup", name, cpus, desired.mems, limits)
        if not quiet:
            _say(command[0], taken, desired, limits, group)
        child = os.fork()
        if child == 0:
            _become(command, group, cpus, desired.mems, _environment(taken, desired))
        for one in taken:
            with contextlib.suppress(OSError):  # the tether alone keeps it, too
                asyncio.run(node.hand_over(one.entry.uid, child))
        return _wait_for(child)
    except RejectedError as error:
        print(f"drakit run: {error}", file=sys.stderr)
        return NO_FIT
    finally:
        if group:
            group.remove()
        for one in taken:
            asyncio.run(node.release(one))


def _desired(driver: LocalDriver, node: LocalNode, uses: tuple[ClaimUse, ...]) -> DesiredResources:
    """What the command must look like, by the driver's own word for a container."""
    prepared_claims = asyncio.run(node.look())
    view = ContainerView("command", "command", "", "command", "default", uses=uses)
    return driver.enforce(view, prepared_claims)


def _limits(driver: LocalDriver, uses: tuple[ClaimUse, ...]) -> dict[str, str]:
    """Cgroup files for the claimed memory and hugepages."""
    wanted = desired(uses)
    counted = driver.cpus.machine.cgroups.memory_hugetlb_accounting
    charged = sum(wanted.pages.values()) if counted else 0
    return confine.memory_limits(wanted.memory, wanted.pages, charged=charged)


def _say(
    command: str,
    taken: Sequence[Taken],
    desired: DesiredResources,
    limits: Mapping[str, str],
    group: confine.CommandCgroup | None,
) -> None:
    """The first line: what the command has, and how surely."""
    held = "; ".join(held_words(one.entry) for one in taken)
    missing = tuple(limits) if group is None else group.left_out
    ways = ["cgroup" if group else "CPU affinity"]
    ways += [f"not limited: {', '.join(missing)}"] if missing else []
    print(
        f"drakit run: {command} on {held}, memory nodes {desired.mems or 'any'} ({'; '.join(ways)})",
        file=sys.stderr,
    )


def _environment(taken: Sequence[Taken], desired: DesiredResources) -> dict[str, str]:
    granted = {
        k: v for one in taken for prepared in one.entry.devices for k, v in prepared.env.items()
    }
    cpus = CpuSet.union(one.entry.exclusive("cpu") for one in taken)
    own = {"DRA_CPUSET": str(cpus)} if cpus else {}
    return {**os.environ, **granted, **desired.env, **own}


def _become(
    command: list[str],
    group: confine.CommandCgroup | None,
    cpus: CpuSet,
    mems: CpuSet | None,
    environment: Mapping[str, str],
) -> NoReturn:
    """In the child: confine, then be the command. Better no command than one that is not confined."""
    code = 126
    try:
        if group:
            group.enter()
        confine.set_affinity(cpus, mems)
        os.execvpe(command[0], command, environment)  # noqa: S606 - this is the user's command
    except FileNotFoundError:
        code = 127
        sys.stderr.write(f"drakit run: {command[0]}: command not found\n")
    except OSError as error:
        sys.stderr.write(f"drakit run: cannot run {command[0]} on CPUs {cpus}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait_for(child: int) -> int:
    """Wait for the command, passing signals on; returns its exit code as a shell would."""

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    # The terminal sends Ctrl-C to the whole group: the command decides, we only wait for it.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _, status = os.waitpid(child, 0)  # PEP 475: repeated after a signal
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
