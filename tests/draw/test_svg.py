"""Geometry of the SVG: nothing overlaps unless nested, and no text leaves its box."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.draw.marks import Mark
from drakit.draw.svg import CORE_FILLS, WIDTHS, draw_svg
from drakit.machine.model import CoreType, Machine
from drakit.testing.synthetic import Numbering, Surroundings, build
from tests.cli.machines import any_machine, hybrid, server

SVG = "{http://www.w3.org/2000/svg}"
ABOVE, BELOW = 0.95, 0.25
"""How far letters reach above and below the baseline, in sizes of the font."""


@dataclass(frozen=True, slots=True)
class Area:
    left: float
    top: float
    right: float
    bottom: float
    what: str

    def contains(self, other: Area) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and self.right >= other.right
            and self.bottom >= other.bottom
        )

    def apart_from(self, other: Area) -> bool:
        return (
            self.right <= other.left
            or other.right <= self.left
            or self.bottom <= other.top
            or other.bottom <= self.top
        )


def rect_area(element: ET.Element) -> Area:
    x, y = float(element.get("x", "0")), float(element.get("y", "0"))
    width, height = float(element.get("width", "0")), float(element.get("height", "0"))
    return Area(x, y, x + width, y + height, element.get("class", ""))


def text_area(element: ET.Element) -> Area:
    text = element.text or ""
    width = len(text) * WIDTHS[element.get("class", "")]
    size = float(element.get("font-size", "0"))
    x, y = float(element.get("x", "0")), float(element.get("y", "0"))
    if element.get("text-anchor") == "middle":
        x -= width / 2
    return Area(x, y - ABOVE * size, x + width, y + BELOW * size, repr(text))


def areas(svg: str) -> tuple[list[Area], list[Area]]:
    root = ET.fromstring(svg)
    rects = [rect_area(element) for element in root.iter(f"{SVG}rect")]
    texts = [text_area(element) for element in root.iter(f"{SVG}text")]
    return rects, texts


def nearby(items: list[Area]) -> list[tuple[Area, Area]]:
    """Pairs whose horizontal extents meet: a sweep, so that large pictures stay quick."""
    pairs: list[tuple[Area, Area]] = []
    active: list[Area] = []
    for item in sorted(items, key=lambda area: (area.left, -area.right)):
        active = [other for other in active if other.right > item.left]
        pairs += [(other, item) for other in active]
        active.append(item)
    return pairs


def assert_tidy(svg: str) -> None:
    rects, texts = areas(svg)
    page = rects[0]
    assert page.what == "page"
    kinds = {id(area): "text" for area in texts}
    for first, second in nearby(rects + texts):
        if first.apart_from(second):
            continue
        pair = {kinds.get(id(first), "rect"), kinds.get(id(second), "rect")}
        assert pair != {"text"}, f"{first} overlaps {second}"
        if pair == {"rect", "text"}:
            text, rect = (first, second) if id(first) in kinds else (second, first)
            assert rect.contains(text), f"{text} crosses the edge of {rect}"
        else:
            assert first.contains(second) or second.contains(first), f"{first} cuts {second}"
    assert all(page.contains(area) for area in rects + texts)


def drawn_cpus(svg: str) -> list[int]:
    root = ET.fromstring(svg)
    return sorted(int(text.text or "") for group in root.iter(f"{SVG}g") for text in group.iter(f"{SVG}text"))


@given(any_machine)
def test_nothing_overlaps_and_every_cpu_is_drawn_once(machine: Machine) -> None:
    svg = draw_svg(machine)
    assert_tidy(svg)
    assert drawn_cpus(svg) == [cpu.id for cpu in machine.cpus]


@given(any_machine, st.data())
def test_marks_and_their_names_have_room(machine: Machine, data: st.DataObject) -> None:
    names = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=90)
    owners = [Mark(symbol, data.draw(names), hue) for hue, symbol in enumerate("abc")]
    chosen = st.sampled_from([cpu.id for cpu in machine.cpus])
    marks = data.draw(st.dictionaries(chosen, st.sampled_from(owners), max_size=12))
    svg = draw_svg(machine, marks)
    assert_tidy(svg)
    for number, mark in marks.items():
        assert f">{number}{mark.symbol}<" in svg


SHAPES = {
    "two CPUs": build(cores=1, threads=2),
    "server": server(),
    "laptop": hybrid(),
    "512 CPUs": build(sockets=2, llcs=16, cores=8, threads=2),
    "256 CPUs in eight nodes, SMT4": build(
        sockets=8, cores=8, threads=4, surroundings=Surroundings(numbering=Numbering.ADJACENT)
    ),
    "1024 CPUs, SMT8": build(sockets=4, nodes=2, llcs=4, cores=4, threads=8),
    "2048 CPUs": build(sockets=4, nodes=2, llcs=8, cores=16, threads=2),
    "4096 CPUs, folded": build(sockets=8, nodes=2, llcs=16, cores=8, threads=2),
    "twenty nodes": build(sockets=20, cores=2, threads=1, memory_only_nodes=4),
}


@pytest.mark.parametrize("name", SHAPES)
def test_usual_and_large_machines_are_tidy_and_shaped_for_a_slide(name: str) -> None:
    svg = draw_svg(SHAPES[name])
    assert_tidy(svg)
    page = areas(svg)[0][0]
    assert 0.7 < page.right / page.bottom < 3.2


def test_the_picture_is_self_contained() -> None:
    svg = draw_svg(server())
    assert svg.startswith("<svg ")
    links = svg.replace("http://www.w3.org/2000/svg", "")
    assert "http" not in links
    assert "<style" not in svg
    assert "<script" not in svg


def test_title_and_legend_describe_the_machine() -> None:
    texts = [e.text for e in ET.fromstring(draw_svg(hybrid())).iter(f"{SVG}text")]
    assert any("6 P-cores + 8 E-cores" in (text or "") for text in texts)
    assert {"P-core", "E-core", "CPU (hardware thread)"} <= set(texts)
    assert "isolated CPU" not in texts


def test_kinds_have_their_colors() -> None:
    svg = draw_svg(hybrid())
    assert svg.count(f'fill="{CORE_FILLS[CoreType.PERFORMANCE]}"') == 6 + 1
    assert svg.count(f'fill="{CORE_FILLS[CoreType.EFFICIENCY]}"') == 8 + 1
    assert CORE_FILLS[CoreType.STANDARD] not in svg


def test_offline_and_isolated_cpus_are_visible_and_explained() -> None:
    svg = draw_svg(build(cores=4, threads=1, offline=CpuSet([1]), isolated=CpuSet([2, 3])))
    assert svg.count("line-through") == 1
    assert svg.count("#fde68a") == 2 + 1
    assert "isolated CPU" in svg
    assert "offline CPU" in svg


def test_names_are_escaped() -> None:
    machine = build(cores=2)
    svg = draw_svg(machine, {0: Mark("a", "<b>&", 0)})
    assert any("<b>&" in (e.text or "") for e in ET.fromstring(svg).iter(f"{SVG}text"))
