"""CpuSet behaves as a Python set of integers, and speaks both of the kernel's spellings."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drakit.core.cpuset import EMPTY, MAX_CPU, CpuSet, CpuSetError

numbers = st.sets(
    st.one_of(st.integers(0, 70), st.integers(0, 9000), st.integers(MAX_CPU - 40, MAX_CPU - 1)), max_size=60
)
dense = st.integers(0, 3000).flatmap(
    lambda start: st.integers(0, 900).map(lambda length: set(range(start, start + length)))
)
sets = st.one_of(numbers, dense)


# -- the set itself ----------------------------------------------------------------------------------


@given(sets)
def test_it_holds_what_was_put_in_in_order(members: set[int]) -> None:
    cpus = CpuSet(members)
    assert list(cpus) == sorted(members)
    assert len(cpus) == len(members)
    assert bool(cpus) == bool(members)
    assert cpus.mask == sum(1 << member for member in members)
    assert CpuSet.from_mask(cpus.mask) == cpus
    for probe in [*list(members)[:5], 3, 4000, -1]:
        assert (probe in cpus) == (probe in members)
    assert "3" not in cpus


@given(sets, sets)
def test_algebra_is_that_of_sets(left: set[int], right: set[int]) -> None:
    a, b = CpuSet(left), CpuSet(right)
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert (a <= b, a < b, a >= b, a > b) == (left <= right, left < right, left >= right, left > right)
    assert a.isdisjoint(b) == left.isdisjoint(right)
    assert (a == b) == (left == right)
    assert CpuSet.union([a, b, a]) == a | b
    assert a - b <= a <= a | b


@given(sets, st.integers(-3, 1000))
def test_lowest_and_highest(members: set[int], count: int) -> None:
    cpus, ordered = CpuSet(members), sorted(members)
    wanted = max(0, count)
    assert list(cpus.lowest(count)) == ordered[:wanted]
    assert list(cpus.highest(count)) == ordered[max(0, len(ordered) - wanted) :]
    if members:
        assert (cpus.min(), cpus.max()) == (ordered[0], ordered[-1])


@pytest.mark.parametrize("end", ["min", "max"])
def test_the_empty_set_has_no_ends(end: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        getattr(EMPTY, end)()


@given(sets)
def test_it_is_a_value(members: set[int]) -> None:
    cpus = CpuSet(members)
    again = CpuSet(sorted(members))
    assert cpus == again
    assert hash(cpus) == hash(again)
    assert cpus != members
    assert pickle.loads(pickle.dumps(cpus)) == cpus
    assert copy.deepcopy(cpus) == cpus
    assert eval(repr(cpus), {"CpuSet": CpuSet.parse}) == cpus


def test_it_cannot_be_changed() -> None:
    cpus = CpuSet([1])
    with pytest.raises(AttributeError, match="immutable"):
        cpus._mask = 0
    with pytest.raises(AttributeError, match="immutable"):
        del cpus._mask


@pytest.mark.parametrize("bad", [-1, MAX_CPU, 1 << 31])
def test_numbers_out_of_range_are_rejected(bad: int) -> None:
    with pytest.raises(ValueError, match=str(bad)):
        CpuSet([0, bad])
    with pytest.raises(ValueError, match="mask"):
        CpuSet.from_mask(-1 if bad < 0 else 1 << bad if bad < 1 << 20 else -bad)


@given(st.integers(0, 500), st.integers(0, 500))
def test_ranges(start: int, stop: int) -> None:
    assert list(CpuSet.range(start, stop)) == list(range(start, stop))


def test_a_range_does_not_start_below_zero() -> None:
    with pytest.raises(ValueError, match="negative"):
        CpuSet.range(-1, 3)


# -- the list format -----------------------------------------------------------------------------------


@given(sets)
@example({0, 1, 2, 4, 6, 7})
def test_the_list_format_goes_both_ways(members: set[int]) -> None:
    text = str(CpuSet(members))
    assert set(CpuSet.parse(text)) == members
    assert set(CpuSet.parse(f" {text}\n\0")) == members
    assert str(CpuSet.parse(text)) == text


LISTS = [
    ("", ""),
    ("\n", ""),
    ("0", "0"),
    ("0-3,8,10-12", "0-3,8,10-12"),
    ("3,1,2", "1-3"),
    ("0-3,2-5", "0-5"),
    ("5-5", "5"),
    ("007", "7"),
    ("0-31:2/8", "0-1,8-9,16-17,24-25"),
    ("10-12:2/4", "10-11"),
    ("10-20:3/4", "10-12,14-16,18-20"),
    ("0-6:1/2", "0,2,4,6"),
    ("4:1/1", "4"),
    ("0-9:9/9", "0-9"),
    ("0-3,8,10-12:2/4", "0-3,8,10-11"),
    (f"{MAX_CPU - 1}", f"{MAX_CPU - 1}"),
]


@pytest.mark.parametrize(("text", "canonical"), LISTS)
def test_lists(text: str, canonical: str) -> None:
    assert str(CpuSet.parse(text)) == canonical


@given(st.integers(0, 200), st.integers(0, 300), st.integers(1, 40), st.integers(1, 40))
def test_strides_use_the_first_of_every_group(first: int, length: int, used: int, group: int) -> None:
    used = min(used, group)
    cpus = CpuSet.parse(f"{first}-{first + length}:{used}/{group}")
    assert set(cpus) == {first + i for i in range(length + 1) if i % group < used}


BAD_LISTS = [
    ("3-1", 0, "backwards"),
    ("0,3-1", 2, "backwards"),
    ("a", 0, "'a'"),
    ("1,a", 2, "'a'"),
    ("-1", 0, "'-'"),
    ("1-", 2, "the end"),
    ("1,", 2, "the end"),
    (",1", 0, "','"),
    ("1,,2", 2, "','"),
    ("1 2", 1, "' '"),
    ("1, 2", 2, "' '"),
    ("1-2-3", 3, "'-'"),
    ("1.5", 1, "'.'"),
    ("0x1", 1, "'x'"),
    ("٣", 0, "'٣'"),
    ("0-3:", 4, "the end"),
    ("0-3:2", 5, "'/'"),
    ("0-3:2/", 6, "the end"),
    ("0-3:0/4", 0, "stride"),
    ("0-3:3/2", 0, "stride"),
    ("0-3:1/0", 0, "stride"),
    (str(MAX_CPU), 0, "larger"),
    ("0-999999999999999999999", 2, "larger"),
    ("2147483648", 0, "larger"),
]


@pytest.mark.parametrize(("text", "position", "word"), BAD_LISTS)
def test_garbage_is_rejected_with_its_position(text: str, position: int, word: str) -> None:
    with pytest.raises(CpuSetError) as caught:
        CpuSet.parse(text)
    assert caught.value.position == position
    assert word in str(caught.value)
    # The last line points at the place in the line above it.
    shown, pointer = str(caught.value).splitlines()[-2:]
    assert pointer.index("^") - 2 == position
    assert shown[2:] == text


def test_the_place_stays_visible_in_long_texts() -> None:
    text = ",".join(str(n) for n in range(500)) + ",x" + ",7" * 300
    with pytest.raises(CpuSetError) as caught:
        CpuSet.parse(text)
    shown, pointer = str(caught.value).splitlines()[-2:]
    assert len(shown) < 60
    assert shown[pointer.index("^")] == "x"


def test_absurd_lengths_are_rejected() -> None:
    with pytest.raises(CpuSetError, match="too long"):
        CpuSet.parse("1," * (1 << 20))
    with pytest.raises(CpuSetError, match="too long"):
        CpuSet.parse_mask("0" * MAX_CPU)


@given(st.text(alphabet="0123456789-,:/ax \n", max_size=12))
def test_parsing_gives_a_set_or_an_error_with_a_position(text: str) -> None:
    try:
        cpus = CpuSet.parse(text)
    except CpuSetError as error:
        assert 0 <= error.position <= len(text)
        assert error.text in text
    else:
        assert CpuSet.parse(str(cpus)) == cpus


# -- the mask format -----------------------------------------------------------------------------------


@given(sets)
def test_the_mask_format_goes_both_ways(members: set[int]) -> None:
    text = CpuSet(members).to_mask_text()
    assert set(CpuSet.parse_mask(text)) == members
    assert set(CpuSet.parse_mask(text + "\n\0")) == members
    assert {len(word) for word in text.split(",")} == {8}


MASKS = [
    ("0", ""),
    ("00000000", ""),
    ("f", "0-3"),
    ("ff", "0-7"),
    ("FFFFFFFF,00000000", "32-63"),
    ("1,00000000", "32"),
    ("00000001,00000000,00000003", "0-1,64"),
    ("003ff", "0-9"),
]


@pytest.mark.parametrize(("text", "canonical"), MASKS)
def test_masks(text: str, canonical: str) -> None:
    assert str(CpuSet.parse_mask(text)) == canonical


BAD_MASKS = [
    ("", 0),
    ("g", 0),
    ("ff,", 3),
    ("ff,,ff", 3),
    ("0x1", 1),
    ("ff ff", 2),
    ("00000001,zz", 9),
    ("123456789", 0),
    ("-1", 0),
]


@pytest.mark.parametrize(("text", "position"), BAD_MASKS)
def test_bad_masks_are_rejected_with_their_position(text: str, position: int) -> None:
    with pytest.raises(CpuSetError) as caught:
        CpuSet.parse_mask(text)
    assert caught.value.position == position


def test_a_mask_of_absurd_cpus_is_rejected() -> None:
    words = MAX_CPU // 32
    with pytest.raises(CpuSetError, match="above"):
        CpuSet.parse_mask("1" + ",00000000" * words)


@given(st.text(alphabet="0123456789abcdefABCDEF,xz", max_size=24))
def test_parsing_a_mask_gives_a_set_or_an_error(text: str) -> None:
    try:
        cpus = CpuSet.parse_mask(text)
    except CpuSetError as error:
        assert 0 <= error.position <= len(text)
    else:
        assert cpus.mask == int(text.replace(",", "") or "0", 16) or "," in text
        assert CpuSet.parse_mask(cpus.to_mask_text()) == cpus
