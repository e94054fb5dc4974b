"""A daemon that runs for months: memory, descriptors and files stay flat over many claims."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

from h2.connection import H2Connection

from drakit.kit.claims import unprepared as tombstones
from drakit.kit.claims.cdi_specs import ClaimSpecs
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.metadata import MetadataFiles
from drakit.kit.claims.preparer import Preparer
from drakit.testing.kubelet import ContainerClaim, FakeKubelet, FakePod, PodClaim
from drakit.wire.kubelet import KubeletPlugin
from tests.kit.claimworld import DRIVER, Claims, FakeNode, NumberDriver, resource_claim


def test_nothing_grows_with_the_number_of_claims(scale):
    # In a process of its own: the coverage tracer's own memory would be measured with ours.
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.test_leaks", str(scale)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def live_many_claims(scale):
    # Bounds that are reached within the first rounds, so that what grows beyond is a leak.
    H2Connection.MAX_CLOSED_STREAMS = 50
    tombstones.MOST = 20
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="k", dir=place) as root:
        claims = Claims()
        checkpoint = Checkpoint(os.path.join(root, "claims"))
        checkpoint.load()
        driver = NumberDriver()
        preparer = Preparer(
            FakeNode(driver),
            checkpoint=checkpoint,
            source=claims,
            cdi=ClaimSpecs(os.path.join(root, "cdi"), driver.cdi_kind),
            metadata=MetadataFiles(root, DRIVER),
        )
        async with FakeKubelet(root) as kubelet:
            plugin = KubeletPlugin(DRIVER, preparer, kubelet_root=root)
            await plugin.start_service()
            await plugin.register()
            await kubelet.registered(DRIVER)

            async def live(rounds, tag):
                for number in range(rounds):
                    name = f"{tag}-{number}"
                    pod = FakePod(
                        name, claims=(PodClaim("n", name),), containers={"c": (ContainerClaim("n"),)}
                    )
                    document = resource_claim(name, pods=(pod.uid,))
                    claims.add(document)
                    await kubelet.run_pod(pod, [document])
                    await kubelet.stop_pod(pod.uid)
                    claims.documents.clear()
                kubelet.calls.clear()

            await live(40, "warm")
            files, descriptors = count_files(root), count_descriptors()
            tracemalloc.start()
            try:
                await live(30, "before")
                before = measured()
                await live(90 * scale, "many")
                after = measured()
            finally:
                tracemalloc.stop()
            assert count_files(root) == files
            assert count_descriptors() == descriptors
            # Marks of ended claims are in the file only; what is left is noise of caches. Over many
            # rounds msgspec fills its own of 512 short keys: 50 kB after 5 000 claims as after 10 000.
            noise = 40_000 if scale == 1 else 80_000
            assert after - before < noise, f"{after - before} bytes more"
            await plugin.close()


def measured():
    gc.collect()
    # CPython keeps up to 4096 names of attributes that were looked up by strings made at run time,
    # as opening a text file does: bounded, but it takes some 100 000 claims to get there.
    sys._clear_type_cache()
    return tracemalloc.get_traced_memory()[0]


def count_files(root):
    return sum(len(names) for _, _, names in os.walk(root))


def count_descriptors():
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    asyncio.run(live_many_claims(int(sys.argv[1])))
