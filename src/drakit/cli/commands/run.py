"""``drakit run``: a command with a claim on this machine, without a cluster."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from drakit.cli.errors import CliError, cli_errors
from drakit.cli.local_node import add_options, find_node_drivers, held_words, local_node, print_claims
from drakit.cluster import ClaimFile, read_claims
from drakit.core.cpuset import CpuSet
from drakit.core.objects import ResourceClaim
from drakit.core.quantity import Quantity
from drakit.core.text import cpu_list
from drakit.draw.terminal import Terminal
from drakit.drivers.cpumem.container_memory import container_memory
from drakit.drivers.cpumem.hugepages.sizes import parse_size
from drakit.drivers.cpumem.kinds import CPU, MEMORY, hugepages
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.driver import ClaimUse, ContainerView, DesiredResources, RejectedError
from drakit.local import confine
from drakit.local.local_drivers import amounts_claim, driver_for, simple_claim
from drakit.local.node import DoesNotFitError, LocalNode, Taken, fresh_claim
from drakit.scheduler.errors import FatalError, SearchLimitError

NO_FIT: Final = 1
_POLL_SECONDS: Final = 0.5
_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)

EXAMPLES: Final = """\
examples:
  drakit run -f claim.yaml -- make -j4        run the command on exactly the claim's CPUs
  drakit run --cpus 2 -- ./benchmark          the same without a file: two CPUs of one NUMA node
  drakit run --cpus 2 --memory 1Gi --hugepages 2Mi=64Mi -- ./server     all on one NUMA node
  drakit run -f claim.yaml --dry-run          show the CPUs it would get
  drakit run -f claim.yaml --wait -- ./job    wait until the claim fits
  drakit ps                                   list the claims

The file is a manifest for the cluster: a ResourceClaim, a ResourceClaimTemplate, or a Pod with its
claims, of dra.cpu or of dra.cpumem. The claim is released when the command and all its children have
ended, also after kill -9. The exit code is that of the command, 1 if the claim does not fit, 2 for
invalid input, 126 or 127 if the command cannot be started.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("-f", "--filename", metavar="FILE", help="file with the claim (- for standard input)")
    parser.add_argument("--cpus", metavar="N", type=int, help="claim N CPUs, without a file")
    parser.add_argument("--memory", metavar="AMOUNT", help="claim this much memory (1Gi), without a file")
    parser.add_argument(
        "--hugepages",
        metavar="SIZE=AMOUNT",
        action="append",
        default=[],
        help="claim hugepages of a size (2Mi=64Mi), without a file; once for each size",
    )
    parser.add_argument("--wait", action="store_true", help="wait until the claim fits")
    parser.add_argument("--dry-run", action="store_true", help="show the CPUs without running the command")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only errors")
    add_options(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- command and its arguments")


def run(options: argparse.Namespace) -> int:
    """Prepare the claim, run the command on it, and release it."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command and not options.dry_run:
        raise CliError("no command given", "write it after --: drakit run -f claim.yaml -- command")
    file = _claims(options)
    driver, node = local_node(options, file.classes, driver_for(file.claims, file.classes))
    for warning in () if options.quiet else find_node_drivers(options).warnings:
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
        raise CliError(str(error), "correct the claim; see `drakit lint`") from None
    except OSError as error:
        raise CliError(f"cannot store the claim: {error}", "give another --state-dir") from None
    return _run_on(driver, node, taken, command, quiet=options.quiet)


def _claims(options: argparse.Namespace) -> ClaimFile:
    amounts = options.memory is not None or bool(options.hugepages)
    if options.filename is not None:
        if amounts or options.cpus is not None:
            raise CliError(
                "both a file and amounts are given", "give either -f, or --cpus, --memory and --hugepages"
            )
        return read_claims(options.filename)
    if options.cpus is None and not amounts:
        raise CliError("no claim given", "give a file with -f, or --cpus, --memory, --hugepages")
    if options.cpus is not None and options.cpus < 1:
        raise CliError(f"--cpus {options.cpus} is not valid", "request at least one CPU")
    if amounts:
        return ClaimFile((amounts_claim(_amounts(options)),), ())
    return ClaimFile((simple_claim(options.cpus, options.cpu_device_mode),), ())


def _amounts(options: argparse.Namespace) -> dict[str, Quantity]:
    """Return the requested amounts by capacity key."""
    amounts: dict[str, Quantity] = {}
    if options.cpus is not None:
        amounts[CPU.key] = Quantity(options.cpus)
    with cli_errors(ValueError, "write --memory 1Gi, --hugepages 2Mi=64Mi"):
        if options.memory is not None:
            amounts[MEMORY.key] = Quantity(options.memory)
        for text in options.hugepages:
            size, _, amount = text.partition("=")
            amounts[hugepages(parse_size(size)).key] = Quantity(amount)
    for key, amount in amounts.items():
        if amount.nanos <= 0:
            raise CliError(f"{amount} of {key} is not valid", "request more than 0")
    return amounts


async def _take(
    node: LocalNode, claims: Sequence[ResourceClaim], options: argparse.Namespace
) -> tuple[Taken, ...]:
    reported = False
    while True:
        try:
            return await node.take(claims)
        except (DoesNotFitError, RejectedError):
            if not options.wait:
                raise
        if not reported and not options.quiet:
            print("drakit run: does not fit now; waiting (see `drakit ps`)", file=sys.stderr)
            reported = True
        await asyncio.sleep(_POLL_SECONDS)


async def _show(driver: NodeDriver, node: LocalNode, claims: Sequence[ResourceClaim]) -> int:
    prepared_claims = await node.look()
    entries = node.assignment(claims, prepared_claims)
    for entry in entries:
        devices = ", ".join(dict.fromkeys(each.device for each in entry.devices))
        print(f"{entry.name}: {held_words(entry)} ({devices})")
    print_claims(driver, [*prepared_claims, *entries], Terminal.of(sys.stdout), bars=True)
    return 0


def explain_misfit(driver: NodeDriver, error: DoesNotFitError) -> str:
    """Explain why the claims do not fit on this machine now, as ``drakit explain`` does."""
    cpus, prepared_claims, report = driver.cpus, error.prepared_claims, error.report()
    rows = ["drakit run: the claim does not fit on this machine now"]
    rows += [f"  {finding}" for finding in report.findings]
    rows += [f"  {entry.name} holds {held_words(entry)}" for entry in prepared_claims]
    if cpus.reserved:
        rows.append(f"  reserved, or outside this process's affinity: {cpu_list(cpus.reserved)}")
    if cpus.held_back:
        rows.append(f"  reserved for the shared pool: {cpu_list(cpus.held_back)} (--min-shared-cpus)")
    rows += [f"  it would fit: {remedy}" for remedy in report.remedies]
    if prepared_claims.entries:
        rows.append("  or wait with --wait")
    return "\n".join(rows)


def _run_on(
    driver: NodeDriver, node: LocalNode, taken: Sequence[Taken], command: list[str], *, quiet: bool
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
            _report(command[0], taken, desired, limits, group)
        child = os.fork()
        if child == 0:
            _exec(command, group, cpus, desired.mems, _environment(taken, desired))
        for one in taken:
            with contextlib.suppress(OSError):  # its tether alone is enough
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


def _desired(driver: NodeDriver, node: LocalNode, uses: tuple[ClaimUse, ...]) -> DesiredResources:
    """Return the resources of the command, as the driver computes them for a container."""
    prepared_claims = asyncio.run(node.look())
    view = ContainerView("command", "command", "", "command", "default", uses=uses)
    return driver.enforce(view, prepared_claims)


def _limits(driver: NodeDriver, uses: tuple[ClaimUse, ...]) -> dict[str, str]:
    """Return the cgroup files for the claimed memory and hugepages."""
    wanted = container_memory(uses)
    counted = driver.cpus.machine.cgroups.memory_hugetlb_accounting
    charged = sum(wanted.pages.values()) if counted else 0
    return confine.memory_limits(wanted.memory, wanted.pages, charged=charged)


def _report(
    command: str,
    taken: Sequence[Taken],
    desired: DesiredResources,
    limits: Mapping[str, str],
    group: confine.CommandCgroup | None,
) -> None:
    """Print what the command gets, and how it is enforced."""
    held = "; ".join(held_words(one.entry) for one in taken)
    missing = tuple(limits) if group is None else group.left_out
    ways = ["cgroup" if group else "CPU affinity"]
    ways += [f"not limited: {', '.join(missing)}"] if missing else []
    mems = desired.mems
    memory = f"memory node{'' if len(mems) == 1 else 's'} {mems}" if mems else "any memory node"
    print(f"drakit run: {command} on {held}, {memory} ({'; '.join(ways)})", file=sys.stderr)


def _environment(taken: Sequence[Taken], desired: DesiredResources) -> dict[str, str]:
    granted = {k: v for one in taken for prepared in one.entry.devices for k, v in prepared.env.items()}
    cpus = CpuSet.union(one.entry.exclusive("cpu") for one in taken)
    own = {"DRA_CPUSET": str(cpus)} if cpus else {}
    return {**os.environ, **granted, **desired.env, **own}


def _exec(
    command: list[str],
    group: confine.CommandCgroup | None,
    cpus: CpuSet,
    mems: CpuSet | None,
    environment: Mapping[str, str],
) -> NoReturn:
    """In the child: confine this process, then execute the command; fail if it cannot be confined."""
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
        sys.stderr.write(f"drakit run: cannot run {command[0]} on {cpu_list(cpus)}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait_for(child: int) -> int:
    """Wait for the command, forwarding signals; returns its exit code as a shell does."""

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    # The terminal sends Ctrl-C to the whole process group: the command decides whether to end.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _, status = os.waitpid(child, 0)  # PEP 475: repeated after a signal
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
