from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.draw.machine_map import draw, legend
from drakit.draw.machine_tree import machine_boxes
from drakit.draw.marks import Mark
from drakit.draw.terminal import Terminal
from drakit.machine.model import Machine
from drakit.testing.synthetic import Numbering, Surroundings, build
from tests.cli.machines import any_machine, hybrid, server

widths = st.sampled_from([40, 60, 80, 120, 200, 400])
SGR = re.compile(r"\x1b\[[0-9;]*m")


def cells(text: str) -> str:
    """The drawing without titles and notes: lines that hold only frames, brackets and numbers."""
    return re.sub(r"[┏━┓┃┗┛┌─┐│└┘╭╮╰╯╌╎\[\]]", " ", text)


@given(any_machine, widths)
def test_lines_fit_the_width(machine: Machine, width: int) -> None:
    assert max(map(len, draw(machine, terminal=Terminal(width=width)).splitlines())) <= width


@given(any_machine, widths)
def test_no_frame_covers_another(machine: Machine, width: int) -> None:
    text = draw(machine, terminal=Terminal(width=width))
    if "CPUs " in text:  # folded: fewer boxes than the machine has
        return
    boxes = [box for top in machine_boxes(machine) for box in top.walk()]
    framed = sum(box.level.framed for box in boxes)
    for corner in ("┏┌╭", "┓┐╮", "┗└╰", "┛┘╯"):
        assert sum(map(text.count, corner)) == framed


@given(any_machine, widths)
def test_color_only_adds_codes(machine: Machine, width: int) -> None:
    plain = draw(machine, terminal=Terminal(width=width))
    colored = draw(machine, terminal=Terminal(width=width, color=True))
    assert "\x1b" not in plain
    stripped = SGR.sub("", colored)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


@given(any_machine, widths)
def test_ascii_has_the_same_shape(machine: Machine, width: int) -> None:
    fancy = draw(machine, terminal=Terminal(width=width)).splitlines()
    plain = draw(machine, terminal=Terminal(width=width, unicode=False))
    assert plain.isascii()
    assert "?" not in plain.replace(" ?", "")
    assert [len(line) for line in plain.splitlines()] == [len(line) for line in fancy]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 16), st.integers(1, 2), widths)
def test_every_cpu_of_a_regular_machine_is_drawn_once(
    sockets: int, llcs: int, cores: int, threads: int, width: int
) -> None:
    machine = build(sockets=sockets, llcs=llcs, cores=cores, threads=threads)
    lines = [
        line
        for line in cells(draw(machine, terminal=Terminal(width=width))).splitlines()
        if not re.search("[A-Za-z]", line)
    ]
    numbers = sorted(int(word) for line in lines for word in line.split())
    assert numbers == [cpu.id for cpu in machine.cpus]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_up_to_512_cpus_are_drawn_one_by_one_in_few_screens(width: int) -> None:
    machine = build(sockets=2, llcs=16, cores=8, threads=2)
    text = draw(machine, terminal=Terminal(width=width))
    assert "[255 511]" in text
    assert text.count("\n") < 130


def test_more_than_512_cpus_are_folded() -> None:
    text = draw(build(sockets=4, nodes=2, llcs=8, cores=16, threads=2), terminal=Terminal(width=100))
    assert "CPUs 0-15,1024-1039" in text
    assert text.count("\n") < 130


def test_4096_cpus_stay_short() -> None:
    text = draw(build(sockets=8, nodes=2, llcs=16, cores=8, threads=2), terminal=Terminal(width=120))
    assert text.count("\n") < 400


def test_threads_of_many_are_drawn_as_ranges() -> None:
    machine = build(cores=4, threads=8, surroundings=Surroundings(numbering=Numbering.ADJACENT))
    assert "0-7  8-15 16-23 24-31" in draw(machine)


def test_states_are_letters_and_explained() -> None:
    machine = build(cores=4, threads=1, offline=CpuSet([1]), isolated=CpuSet([2, 3]))
    assert " 0 1x 2* 3*" in draw(machine)
    assert legend(machine) == ("x offline: 1", "* isolated: 2-3")


def test_marks_show_their_letter_color_and_owner() -> None:
    machine = build(cores=4, threads=1)
    marks = dict.fromkeys((1, 2), Mark("a", "default/web", 0))
    assert " 0 1a 2a  3" in draw(machine, marks)
    assert "\x1b[30;48;5;39m1a\x1b[0m" in draw(machine, marks, terminal=Terminal(color=True))
    assert legend(machine, marks) == ("a default/web: 1-2",)


def test_marks_break_ranges_of_threads() -> None:
    machine = build(cores=1, threads=8, surroundings=Surroundings(numbering=Numbering.ADJACENT))
    marks = dict.fromkeys((2, 3), Mark("a", "web", 0))
    assert "[0-1 2-3a 4-7]" in draw(machine, marks)


def test_marks_are_listed_where_the_machine_is_folded() -> None:
    machine = build(sockets=2, cores=512, threads=1)
    marks = dict.fromkeys(range(5, 9), Mark("a", "web", 0))
    assert "a web: 5-8" in draw(machine, marks)


def test_server_and_laptop_look_as_intended() -> None:
    assert draw(build(cores=2, threads=2)) == (
        "┏━ Socket 0 · NUMA node 0 · L3 #0 · 32 MiB ━┓\n"
        "┃ 16 GiB memory, 12 GiB free                ┃\n"
        "┃ [0 2] [1 3]                               ┃\n"
        "┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛\n"
    )
    laptop = draw(hybrid())
    assert "P-cores · up to 5.0 GHz" in laptop
    assert re.search(r"12 13 14 15\s{3,}16 17 18 19", laptop)
    rack = draw(server(), terminal=Terminal(width=120))
    assert "1024 × 2 MiB hugepages, 512 free" in rack
    assert "[ 0  64] [ 1  65]" in rack


def test_no_cpu_gives_an_empty_drawing() -> None:
    assert draw(Machine(cpus=(), numa_nodes=(), caches=(), llcs=())) == ""
