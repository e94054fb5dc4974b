"""CEL timestamp and duration functions."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Callable
from typing import Final

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.values import Duration, Overloads, Timestamp, point_in_time, time_span

_UNITS: Final = {
    "ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9,
    "h": 3600 * 10**9,
}  # fmt: skip
_DURATION: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})"
)
_OFFSET: Final = re.compile(r"([+-]?)([0-9]{2}):([0-9]{2})")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_duration(text: str) -> Duration:
    """Parse a duration such as ``1h30m`` as Go does. Raises :class:`CelRuntimeError`."""
    body = text[1:] if text[:1] in ("+", "-") else text
    total, at = 0, 0
    while at < len(body):
        match = _DURATION.match(body, at)
        if match is None or not (match[1] or match[2]):
            raise CelRuntimeError(f'time: invalid duration "{text}"')
        unit = _UNITS[match[3]]
        total += int(match[1] or "0") * unit
        fraction = (match[2] or "")[:20]
        total += int(fraction or "0") * unit // 10 ** len(fraction)
        at = match.end()
    if at == 0 and body != "0":
        raise CelRuntimeError(f'time: invalid duration "{text}"')
    return time_span(-total if text.startswith("-") else total) if body != "0" else Duration(0)


def parse_timestamp(text: str) -> Timestamp:
    """Parse RFC 3339. Raises :class:`CelRuntimeError`."""
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError("not RFC 3339")
        fields = [int(match[i]) for i in range(1, 7)]
        moment = dt.datetime(*fields, tzinfo=dt.UTC)  # type: ignore[arg-type,misc]
        nanos = int((match[7] or "0")[:9].ljust(9, "0"))
        offset = _offset_seconds(match[8]) if match[8] != "Z" else 0
    except ValueError as error:
        raise CelRuntimeError(f'cannot parse "{text}" as timestamp: {error}') from None
    seconds = int((moment - _EPOCH).total_seconds()) - offset
    return point_in_time(seconds * 10**9 + nanos)


def _offset_seconds(text: str) -> int:
    match = _OFFSET.fullmatch(text)
    if match is None or int(match[3]) > 59:
        raise ValueError(f"bad offset {text!r}")
    seconds = int(match[2]) * 3600 + int(match[3]) * 60
    return -seconds if match[1] == "-" else seconds


def timestamp_text(value: Timestamp) -> str:
    """RFC 3339 in UTC without trailing zeros."""
    seconds, nanos = divmod(value.nanos, 10**9)
    moment = _EPOCH + dt.timedelta(seconds=seconds)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + fraction + "Z"


def duration_text(value: Duration) -> str:
    """Seconds without trailing zeros."""
    sign = "-" if value.nanos < 0 else ""
    seconds, nanos = divmod(abs(value.nanos), 10**9)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    return f"{sign}{seconds}{fraction}s"


def _local(value: Timestamp, zone: str | None) -> dt.datetime:
    moment = _EPOCH + dt.timedelta(seconds=value.nanos // 10**9)
    if zone is None or zone in ("UTC", ""):
        return moment
    try:
        if _OFFSET.fullmatch(zone):
            return moment + dt.timedelta(seconds=_offset_seconds(zone))
        return moment.astimezone(zoneinfo.ZoneInfo(zone))
    except (ValueError, OverflowError, zoneinfo.ZoneInfoNotFoundError, OSError) as error:
        raise CelRuntimeError(f"unknown time zone {zone}: {error}") from None


def _part(read: Callable[[dt.datetime], int]) -> list[tuple[Callable[..., int], tuple[type, ...]]]:
    return [
        (lambda value: read(_local(value, None)), (Timestamp,)),
        (lambda value, zone: read(_local(value, zone)), (Timestamp, str)),
    ]


def _units(unit: int) -> Callable[[Duration], int]:
    """Whole units, rounded toward zero."""
    return lambda value: abs(value.nanos) // unit * (-1 if value.nanos < 0 else 1)


def _timestamp_millis(value: Timestamp, _: str | None = None) -> int:
    return value.nanos % 10**9 // 10**6


OVERLOADS: Final[Overloads] = {
    "duration": [(parse_duration, (str,)), (lambda value: value, (Duration,))],
    "timestamp": [
        (parse_timestamp, (str,)), (lambda value: value, (Timestamp,)),
        (lambda seconds: point_in_time(seconds * 10**9), (int,)),
    ],
    "getFullYear": _part(lambda t: t.year),
    "getMonth": _part(lambda t: t.month - 1),
    "getDate": _part(lambda t: t.day),
    "getDayOfMonth": _part(lambda t: t.day - 1),
    "getDayOfWeek": _part(lambda t: t.isoweekday() % 7),
    "getDayOfYear": _part(lambda t: t.timetuple().tm_yday - 1),
    "getHours": [*_part(lambda t: t.hour), (_units(3600 * 10**9), (Duration,))],
    "getMinutes": [*_part(lambda t: t.minute), (_units(60 * 10**9), (Duration,))],
    "getSeconds": [*_part(lambda t: t.second), (_units(10**9), (Duration,))],
    "getMilliseconds": [
        (_timestamp_millis, (Timestamp,)), (_timestamp_millis, (Timestamp, str)),
        (_units(10**6), (Duration,)),
    ],
}  # fmt: skip
