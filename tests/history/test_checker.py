"""The history checker finds what is certain in a record, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from . import checker
from .checker import RecordError, judge
from .recorder import Recorder, Sampler, checkpoints
from .stories import Story


def running_on(cpus: str = "2-3") -> Story:
    """Claim ``a`` with its container ``one``, and a container ``shared`` without claims."""
    story = Story().start("shared").look(shared="0-7").prepare("a", cpus)
    return story.start("one", "a").look(one=cpus, shared="0-1,4-7")


# -- violations -----------------------------------------------------------------------------------


def _two_claims_are_given_one_cpu() -> Story:
    return Story().prepare("a", "2-3").prepare("b", "3-4")


def _two_checkpoints_hold_one_cpu() -> Story:
    return Story().held(a="7:2", b="8:2").held(a="7:2", b="8:2")


def _two_checkpoints_hold_one_cpu_at_one_moment() -> Story:
    return Story().held(a="7:2", b="8:2", atomic=True)


def _the_claim_of_a_running_container_is_unprepared_and_given_away() -> Story:
    return running_on().unprepare("a").prepare("b", "2").look(one="2-3")


def _a_container_without_claims_comes_onto_claimed_cpus() -> Story:
    return running_on().look(one="2-3", shared="0-7").look(one="2-3", shared="0-7")


def _a_container_without_claims_stays_on_claimed_cpus() -> Story:
    story = Story().start("shared").prepare("a", "2-3").start("one", "a")
    return story.look(shared="0-7", one="2-3").look(one="2-3")


def _a_container_without_claims_is_not_limited_at_all() -> Story:
    return running_on().start("late").look(late="", one="2-3").look(one="2-3")


def _a_container_of_another_claim_is_on_claimed_cpus() -> Story:
    story = running_on().prepare("b", "4").start("two", "b", cpus="4")
    return story.look(two="2-4").look(one="2-3")


def _a_running_container_is_moved() -> Story:
    return running_on().look(one="4-5")


def _a_running_container_is_set_free() -> Story:
    return running_on().look(one="")


def _a_running_container_is_moved_while_the_driver_is_away() -> Story:
    return running_on().away().look(one="4-5")


def _a_container_never_gets_its_cpus() -> Story:
    return Story().prepare("a", "2-3").start("one", "a").look(one="0-7")


def _a_container_gets_the_cpus_of_another_request() -> Story:
    return Story().prepare("a", "2-3").start("one", "a", cpus="2").look(one="3")


def _it_is_not_corrected_after_the_drivers_return() -> Story:
    story = Story().prepare("a", "2-3").away().start("one", "a").look(one="").back()
    return story.note("settings", settling=20, correcting=5).look(one="2-3").look(one="")


def _it_is_not_corrected_in_time() -> Story:
    story = Story().prepare("a", "2").away().start("one", "a").look(one="").back()
    for _ in range(8):
        story.look(one="")
    return story


def _it_was_created_after_the_drivers_return() -> Story:
    return Story().prepare("a", "2").away().back().start("one", "a").look(one="")


def _an_intruder_was_created_after_the_drivers_return() -> Story:
    return running_on().away().back().start("late").look(late="").look(one="2-3")


def _an_intruder_was_created_before_the_driver_went() -> Story:
    return running_on().start("late").away().look(late="").look(one="2-3")


def _a_prepared_claim_whose_cpus_are_not_known_vanishes() -> Story:
    return Story().prepare("a", None).held().held()


def _a_prepared_claim_is_not_in_the_checkpoints() -> Story:
    return Story().prepare("a", "2").held().held()


def _a_prepared_claim_is_lost_in_a_reboot() -> Story:
    return Story().prepare("a", "2").held(a="1:2").reboot().held()


def _the_cpus_of_a_claim_that_was_lost_in_a_reboot_are_given_away() -> Story:
    return Story().prepare("a", "2").reboot().prepare("b", "2").prepare("a", "3")


def _the_claim_of_a_running_container_is_not_in_the_checkpoints() -> Story:
    return running_on().held(a="1:2-3").held().look(one="2-3")


def _a_repeated_prepare_gives_other_cpus() -> Story:
    return Story().prepare("a", "2").prepare("a", "3")


def _the_checkpoint_has_other_cpus() -> Story:
    return Story().prepare("a", "2").held(a="1:3").held(a="1:3")


def _an_unprepared_claim_comes_back() -> Story:
    return Story().prepare("a", "2").unprepare("a").reboot().held(a="1:2")


def _a_container_comes_onto_claimed_cpus_while_the_driver_is_away() -> Story:
    return running_on().away().look(one="2-3", shared="0-7").look(one="2-3")


VIOLATIONS: list[tuple[Callable[[], Story], str]] = [
    (_two_claims_are_given_one_cpu, "two-owners"),
    (_two_checkpoints_hold_one_cpu, "two-owners"),
    (_two_checkpoints_hold_one_cpu_at_one_moment, "two-owners"),
    (_the_claim_of_a_running_container_is_unprepared_and_given_away, "given-away"),
    (_a_container_without_claims_comes_onto_claimed_cpus, "intruder"),
    (_a_container_without_claims_stays_on_claimed_cpus, "intruder"),
    (_a_container_without_claims_is_not_limited_at_all, "intruder"),
    (_a_container_of_another_claim_is_on_claimed_cpus, "intruder"),
    (_a_running_container_is_moved, "moved"),
    (_a_running_container_is_set_free, "moved"),
    (_a_running_container_is_moved_while_the_driver_is_away, "moved"),
    (_a_container_never_gets_its_cpus, "misplaced"),
    (_a_container_gets_the_cpus_of_another_request, "misplaced"),
    (_it_is_not_corrected_after_the_drivers_return, "moved"),
    (_it_is_not_corrected_in_time, "misplaced"),
    (_it_was_created_after_the_drivers_return, "misplaced"),
    (_an_intruder_was_created_after_the_drivers_return, "intruder"),
    (_an_intruder_was_created_before_the_driver_went, "intruder"),
    (_a_prepared_claim_whose_cpus_are_not_known_vanishes, "vanished"),
    (_a_prepared_claim_is_not_in_the_checkpoints, "vanished"),
    (_a_prepared_claim_is_lost_in_a_reboot, "vanished"),
    (_the_cpus_of_a_claim_that_was_lost_in_a_reboot_are_given_away, "two-owners"),
    (_the_claim_of_a_running_container_is_not_in_the_checkpoints, "released"),
    (_a_repeated_prepare_gives_other_cpus, "changed"),
    (_the_checkpoint_has_other_cpus, "changed"),
    (_an_unprepared_claim_comes_back, "returned"),
    (_a_container_comes_onto_claimed_cpus_while_the_driver_is_away, "intruder"),
]


@pytest.mark.parametrize(
    ("story", "kind"), [pytest.param(*each, id=each[0].__name__[1:]) for each in VIOLATIONS]
)
def test_a_violation_is_found(story: Callable[[], Story], kind: str):
    assert kind in story().judged().kinds()


# -- what the mutants of the end-to-end tests do, as a record would show it -------------------------


def _gives_back_too_early() -> Story:
    return running_on().unprepare("a").look(shared="0-7").look(one="2-3")


def _loses_state() -> Story:
    story = Story().prepare("a", "4-5").away().back()
    return story.prepare("b", "4-5").start("two", "b").start("one", "a").look(one="4-5", two="4-5")


def _pins_all_to_the_same_cpus() -> Story:
    story = running_on("4-5").prepare("b", "6-7").start("two", "b")
    return story.look(one="4-5", two="4-5").look(one="4-5")


def _pins_the_wrong_cpu() -> Story:
    return Story().prepare("a", "2-3").start("one", "a").look(one="4-5")


def _trusts_the_environment() -> Story:
    return running_on().start("forger").look(forger="2-3", one="2-3").look(one="2-3")


def _lets_pods_share() -> Story:
    """Exclusive between claims, not between pods: the second pod shows a claim that is not its own."""
    return running_on().start("second").look(second="2-3").look(one="2-3")


def _ignores_what_it_missed() -> Story:
    story = Story().prepare("a", "2-3").away().start("one", "a").start("late").back()
    for _ in range(10):
        story.look(one="", late="")
    return story


def _believes_its_own_books() -> Story:
    return running_on().look(one="0-7").look(one="0-7")


def _does_not_sync_files() -> Story:
    return Story().prepare("a", "2").prepare("b", "3").reboot().held(a="1:2")


def _does_not_sync_directories() -> Story:
    return Story().prepare("a", "2").unprepare("a").reboot().held(a="1:2")


MUTANTS = {
    "gives_back_too_early": (_gives_back_too_early, "intruder"),
    "loses_state": (_loses_state, "two-owners"),
    "pins_all_to_the_same_cpus": (_pins_all_to_the_same_cpus, "intruder"),
    "pins_the_wrong_cpu": (_pins_the_wrong_cpu, "misplaced"),
    "trusts_the_environment": (_trusts_the_environment, "intruder"),
    "lets_pods_share": (_lets_pods_share, "intruder"),
    "ignores_what_it_missed": (_ignores_what_it_missed, "misplaced"),
    "believes_its_own_books": (_believes_its_own_books, "moved"),
    "does_not_sync_files": (_does_not_sync_files, "vanished"),
    "does_not_sync_directories": (_does_not_sync_directories, "returned"),
}
"""Others are not here, as ``forgets_to_grow``: a pool that is too small breaks no exclusivity."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_a_broken_driver_does_is_found(mutant: str):
    story, kind = MUTANTS[mutant]
    assert kind in story().judged().kinds()


def test_these_are_mutants_of_the_end_to_end_tests():
    modules = {path.stem for path in (Path(__file__).parent.parent / "e2e/mutants").glob("[!_]*.py")}
    assert modules >= set(MUTANTS)


# -- what is legal, or cannot be decided ------------------------------------------------------------


def _one_claim_after_the_other() -> Story:
    story = running_on().stop("one").unprepare("a").look(shared="0-7")
    return story.prepare("b", "2-3").start("two", "b").look(two="2-3", shared="0-1,4-7")


def _a_cpu_is_given_on_while_its_release_is_being_answered() -> Story:
    story = Story().prepare("a", "2")
    release = story.call("unprepare", "a")
    return story.prepare("b", "2").answer(release, "a")


def _a_cpu_is_given_on_after_a_release_that_was_never_answered() -> Story:
    story = Story().prepare("a", "2")
    story.call("unprepare", "a")
    return story.prepare("b", "2").held(b="1:2").held(b="1:2")


def _a_prepare_that_was_never_answered_owns_nothing() -> Story:
    story = Story()
    story.call("prepare", "a")
    return story.prepare("b", "2").held(b="1:2")


def _a_prepare_overlaps_the_unprepare_of_the_same_claim() -> Story:
    story = Story()
    prepare = story.call("prepare", "a")
    release = story.call("unprepare", "a")
    return story.answer(prepare, "a", "2").answer(release, "a").prepare("b", "2").held(b="1:2")


def _an_unprepare_that_failed_may_have_happened() -> Story:
    return Story().prepare("a", "2").unprepare("a", error="disk full").prepare("b", "2")


def _a_rejected_unprepare_changes_nothing() -> Story:
    return running_on().unprepare("a", error="in use").look(one="2-3", shared="0-1")


def _a_rejected_prepare_owns_nothing() -> Story:
    story = running_on()
    return story.answer(story.call("prepare", "b"), "b", error="no CPU is free").look(one="2-3")


def _the_pool_grows_when_the_container_has_ended() -> Story:
    return running_on().note("stopping", container="one").look(shared="0-7")


def _a_container_is_gone_before_another_takes_its_place() -> Story:
    """Nobody tells of starts and stops; the two were never seen at one moment."""
    story = Story().note("container", container="one", pod="p", claims=["a"], cpus="2")
    story.note("container", container="two", pod="q", claims=["b"], cpus="2")
    return story.look(one="2").look(two="2").look(two="2")


def _containers_started_while_the_driver_is_away_are_corrected() -> Story:
    story = running_on().prepare("b", "4").away().start("two", "b").start("late")
    story.look(one="2-3", shared="0-1,5-7", two="", late="").back()
    return story.look(two="", late="").look(two="4", late="0-1,5-7", one="2-3")


def _two_containers_of_one_claim_share_its_cpus() -> Story:
    return running_on().start("helper", "a").look(one="2-3", helper="2-3")


def _a_container_of_two_claims() -> Story:
    story = Story().prepare("a", "2").prepare("b", "5").start("one", "a", "b")
    return story.look(one="2,5")


def _a_container_that_uses_one_request_of_a_claim() -> Story:
    return Story().prepare("a", "2-3").start("one", "a").look(one="2").look(one="2")


def _a_claim_without_cpus() -> Story:
    return running_on().prepare("m", "").start("memory", "m").look(memory="0-1,4-7")


def _a_repeat_gives_the_same() -> Story:
    story = running_on().prepare("a", "2-3").held(a="1:2-3").reboot()
    return story.prepare("a", "2-3").held(a="2:2-3")


def _after_a_reboot_a_claim_may_get_other_cpus() -> Story:
    return Story().prepare("a", "2").reboot().prepare("a", "3").prepare("b", "2")


def _a_checkpoint_is_replaced_between_two_looks() -> Story:
    """Another file of the same name: in between, the CPU may have been another claim's."""
    return Story().held(a="1:2").held(b="5:2").held(a="9:2")


def _a_directory_that_is_not_read_at_one_moment() -> Story:
    return Story().held(a="7:2", b="8:2")


def _a_claim_is_listed_while_it_is_being_unprepared() -> Story:
    story = Story().prepare("a", "2").held(a="1:2")
    release = story.call("unprepare", "a")
    return story.held().answer(release, "a").held()


def _a_claim_is_prepared_once_more_after_its_release() -> Story:
    return Story().prepare("a", "2").unprepare("a").prepare("a", "3").held(a="1:3")


def _readings_that_overlap_are_not_one_moment() -> Story:
    story = Story().note("container", container="one", pod="p", claims=["a"], cpus="2")
    story.note("container", container="two", pod="q", claims=[])
    story.note("container", container="three", pod="r", claims=[]).clock += 100
    story.note("look", containers={"one": [10, 20, "2"], "two": [12, 18, "2"]})
    return story.note("look", containers={"three": [35, 45, "2"], "one": [40, 50, "2"]})


def _a_checkpoint_is_replaced_and_its_cpu_was_another_claims_in_between() -> Story:
    story = Story().held(a="1:2").unprepare("a").prepare("b", "2").unprepare("b")
    return story.prepare("a", "2").held(a="9:2").held(a="9:2")


def _the_directory_is_read_while_the_claim_is_unprepared() -> Story:
    story = Story().prepare("a", "2")
    began = story.clock + 100
    release = story.call("unprepare", "a")
    return story.note("held", **{"from": began}, claims={}).answer(release, "a")


def _a_prepare_in_flight_outlasts_the_unprepare() -> Story:
    story = Story()
    story.call("prepare", "a")
    return story.unprepare("a").held(a="1:2").held(a="1:2")


def _a_claim_is_released_after_its_container_was_last_seen() -> Story:
    return running_on().held(a="1:2-3").look(one="2-3").unprepare("a").held()


def _a_container_that_nobody_describes() -> Story:
    return running_on().look(stranger="2", one="2-3").look(one="2-3")


LEGAL = [
    _one_claim_after_the_other,
    _a_cpu_is_given_on_while_its_release_is_being_answered,
    _a_cpu_is_given_on_after_a_release_that_was_never_answered,
    _a_prepare_that_was_never_answered_owns_nothing,
    _a_prepare_overlaps_the_unprepare_of_the_same_claim,
    _an_unprepare_that_failed_may_have_happened,
    _a_rejected_unprepare_changes_nothing,
    _a_rejected_prepare_owns_nothing,
    _the_pool_grows_when_the_container_has_ended,
    _a_container_is_gone_before_another_takes_its_place,
    _containers_started_while_the_driver_is_away_are_corrected,
    _two_containers_of_one_claim_share_its_cpus,
    _a_container_of_two_claims,
    _a_container_that_uses_one_request_of_a_claim,
    _a_claim_without_cpus,
    _a_repeat_gives_the_same,
    _after_a_reboot_a_claim_may_get_other_cpus,
    _a_checkpoint_is_replaced_between_two_looks,
    _a_directory_that_is_not_read_at_one_moment,
    _a_claim_is_listed_while_it_is_being_unprepared,
    _a_claim_is_prepared_once_more_after_its_release,
    _readings_that_overlap_are_not_one_moment,
    _a_checkpoint_is_replaced_and_its_cpu_was_another_claims_in_between,
    _the_directory_is_read_while_the_claim_is_unprepared,
    _a_prepare_in_flight_outlasts_the_unprepare,
    _a_claim_is_released_after_its_container_was_last_seen,
    _a_container_that_nobody_describes,
]


@pytest.mark.parametrize("story", [pytest.param(each, id=each.__name__[1:]) for each in LEGAL])
def test_what_is_legal_or_open_is_not_held_against_anybody(story: Callable[[], Story]):
    assert story().judged().violations == []


@pytest.mark.parametrize(
    ("story", "reason"),
    [
        (_a_prepare_overlaps_the_unprepare_of_the_same_claim, "overlap"),
        (_containers_started_while_the_driver_is_away_are_corrected, "driver was away"),
        (_a_container_that_nobody_describes, "only the CPUs are known"),
        (lambda: Story().prepare("a", None), "an answer whose CPUs are not known"),
        (lambda: Story().start("one", "a").look(one="2"), "a container whose CPUs are not known"),
    ],
)
def test_what_cannot_be_decided_is_counted(story: Callable[[], Story], reason: str):
    assert any(reason in each for each in story().judged().undecided)


def test_cpus_of_two_machines_are_two_cpus():
    one, other = Story().prepare("a", "2").lines(), Story().prepare("b", "2").lines()
    moved = [json.dumps({**json.loads(line), "machine": "other"}) for line in other]
    assert judge([*one, *moved]).violations == []


# -- the record itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda lines: [], "empty"),
        (lambda lines: lines[:-1], "no end"),
        (lambda lines: lines[1:], "missing or doubled"),
        (lambda lines: [*lines, lines[0]], "missing or doubled"),
        (lambda lines: [lines[0].replace('"at": 1', '"at": 9'), *lines[1:]], "goes back"),
        (lambda lines: [lines[0].replace("prepare", "repair"), *lines[1:]], "unknown verb"),
        (lambda lines: [lines[0].replace('"event": "call"', '"event": "?"'), *lines[1:]], "known"),
        (lambda lines: ["{", *lines], "cannot be understood"),
    ],
)
def test_nothing_is_decided_from_a_damaged_record(damage: Callable[[list[str]], list[str]], reason: str):
    with pytest.raises(RecordError, match=reason):
        judge(damage(Story().prepare("a", "2").lines()))


def test_it_is_a_program_of_its_own(tmp_path: Path):
    """Another process, an isolated interpreter: it can know nothing but the record."""
    record = tmp_path / "record.jsonl"

    def run() -> tuple[int, str]:
        words = [sys.executable, "-I", str(checker.__file__), str(record)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run()[0] == 2
    record.write_text("\n".join(running_on().lines()))
    assert run()[0] == 0
    record.write_text("\n".join(_two_claims_are_given_one_cpu().lines()))
    status, text = run()
    assert status == 1
    assert "CPU 3 belongs to claim a and to claim b" in text
    record.write_text("{")
    assert run()[0] == 2


def test_the_recorder_writes_what_the_checker_reads(tmp_path: Path):
    recorder = Recorder(tmp_path / "record.jsonl")
    sampler = Sampler(tmp_path / "record.jsonl")
    call = recorder.called("prepare", ["a"])
    recorder.answered(call, {"a": {"cpus": "2-3"}})
    recorder.note("container", container="one", pod="p", claims=["a"])
    recorder.note("started", container="one")
    with recorder.driver_away():
        began = sampler.now()
        sampler.looked({"one": (began, sampler.now(), "2-3")})
        sampler.held(began, {"a": ("1", "2-3")})
    with recorder.stopping("one"):
        pass
    call = recorder.called("unprepare", ["a"])
    recorder.answered(call, {"a": {}})
    with pytest.raises(RecordError, match="no end"):
        recorder.judge()
    recorder.end()
    sampler.end()
    report = recorder.judge()
    assert report.violations == []
    assert report.seen == {
        "calls": 2, "containers": 1, "readings": 1, "listings": 1, "ownerships": 1
    }  # fmt: skip


def test_of_equal_looks_the_first_and_the_last_are_written(tmp_path: Path):
    sampler = Sampler(tmp_path / "record.jsonl")
    for cpus in ("2", "2", "2", "2", "3", "3", "3"):
        began = sampler.now()
        sampler.looked({"one": (began, sampler.now(), cpus)})
        sampler.held(began, {})
    sampler.end()
    lines = [json.loads(line) for line in sampler.path.read_text().splitlines()]
    looks = [line["containers"]["one"] for line in lines if line["event"] == "look"]
    assert [cpus for _, _, cpus in looks] == ["2", "2", "3", "3"]
    assert sampler.judge().seen["listings"] == 3


def test_checkpoints_are_read_without_the_drivers_code(tmp_path: Path):
    prepared_devices = [{"exclusive": {"cpu": "2-3"}}, {"exclusive": {"cpu": "6"}}, {}]
    (tmp_path / "a.json").write_text(json.dumps({"entry": {"grants": prepared_devices}}))
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "b.json.unreadable").write_text("{")
    first = checkpoints(tmp_path)
    assert {uid: cpus for uid, (_, cpus) in first.items()} == {"a": "2-3,6"}
    replaced = tmp_path / "new"
    replaced.write_text(json.dumps({"entry": {"grants": prepared_devices}}))
    replaced.rename(tmp_path / "a.json")
    assert checkpoints(tmp_path)["a"][0] != first["a"][0]
