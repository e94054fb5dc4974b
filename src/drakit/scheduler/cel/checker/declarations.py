"""Function and operator overloads of the CEL environment of Kubernetes.

Each line of the table is one overload, in the order in which cel-go tries them: the function,
``.`` for a method or ``-`` for a plain function, the overload ID, the argument types (the receiver
first) and the result type. Placeholders in braces expand to one line per row of ``_FAMILIES``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drakit.scheduler.cel.checker.types import Type, parse_type, split_types
from drakit.scheduler.cel.stdlib.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function; the first argument of a *member* is the receiver."""

    id: str
    member: bool
    args: tuple[Type, ...]
    result: Type
    params: tuple[Type, ...]


@functools.cache
def functions() -> dict[str, tuple[Overload, ...]]:
    """All functions by name."""
    found: dict[str, list[Overload]] = {}
    for line in _expanded():
        name, style, rest = line.split(None, 2)
        overload_id, signature = rest.split(":", 1)
        arguments, result_text = signature.split("->")
        args, result = tuple(map(_type, split_types(arguments))), _type(result_text)
        params = dict.fromkeys(p for t in (*args, result) for p in _parameters(t))
        overload = Overload(overload_id, style == ".", args, result, tuple(params))
        found.setdefault(name, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}


def _expanded() -> Iterator[str]:
    for line in _TABLE.strip().splitlines():
        family = next((rows for mark, rows in _FAMILIES.items() if mark in line), ({},))
        for row in family:
            yield line.format_map(row)


def _type(text: str) -> Type:
    for short, full in _SHORT.items():
        text = text.replace(short, full)
    return parse_type(text.strip())


def _parameters(t: Type) -> Iterator[Type]:
    if t.kind == "param":
        yield t
    for part in t.params:
        yield from _parameters(part)


_SHORT: Final = {
    "Timestamp": "google.protobuf.Timestamp",
    "Duration": "google.protobuf.Duration",
    "authz.": "kubernetes.authorization.",
}
_NUMBERS: Final = {"int64": "int", "uint64": "uint", "double": "double"}
_COMPARABLE: Final = (
    {"operands": "bool", "types": "bool, bool"},
    *(
        {"operands": a if a == b else f"{a}_{b}", "types": f"{_NUMBERS[a]}, {_NUMBERS[b]}"}
        for a in _NUMBERS
        for b in sorted(_NUMBERS, key=lambda number, first=a: (number != first, number))  # type: ignore[misc]
    ),
    *(
        {"operands": kind.lower(), "types": f"{kind}, {kind}"}
        for kind in ("string", "bytes", "Timestamp", "Duration")
    ),
)
_SORTABLE: Final = tuple(
    {"item": item, "name": item.lower(), "full": _SHORT.get(item, item)}
    for item in ("int", "uint", "double", "bool", "Duration", "Timestamp", "string", "bytes")
)
_FAMILIES: Final[dict[str, tuple[dict[str, str], ...]]] = {
    "{operands}": _COMPARABLE,
    "{item}": _SORTABLE,
    "{format}": tuple({"format": name} for name in sorted(FORMATS)),
    "{zone}": ({"zone": "", "moment": "Timestamp"}, {"zone": "_with_tz", "moment": "Timestamp, string"}),
}

_TABLE: Final = """
!_ - logical_not: bool -> bool
-_ - negate_double: double -> double
-_ - negate_int64: int -> int
@in - in_list: <A>, list(<A>) -> bool
@in - in_map: <A>, map(<A>, <B>) -> bool
@not_strictly_false - not_strictly_false: bool -> bool
@sortByAssociatedKeys . list_{full}_sortByAssociatedKeys: list(<T>), list({item}) -> list(<T>)
_!=_ - not_equals: <A>, <A> -> bool
_%_ - modulo_int64: int, int -> int
_%_ - modulo_uint64: uint, uint -> uint
_&&_ - logical_and: bool, bool -> bool
_*_ - multiply_double: double, double -> double
_*_ - multiply_int64: int, int -> int
_*_ - multiply_uint64: uint, uint -> uint
_+_ - add_bytes: bytes, bytes -> bytes
_+_ - add_double: double, double -> double
_+_ - add_duration_duration: Duration, Duration -> Duration
_+_ - add_duration_timestamp: Duration, Timestamp -> Timestamp
_+_ - add_timestamp_duration: Timestamp, Duration -> Timestamp
_+_ - add_int64: int, int -> int
_+_ - add_list: list(<A>), list(<A>) -> list(<A>)
_+_ - add_string: string, string -> string
_+_ - add_uint64: uint, uint -> uint
_-_ - subtract_double: double, double -> double
_-_ - subtract_duration_duration: Duration, Duration -> Duration
_-_ - subtract_int64: int, int -> int
_-_ - subtract_timestamp_duration: Timestamp, Duration -> Timestamp
_-_ - subtract_timestamp_timestamp: Timestamp, Timestamp -> Duration
_-_ - subtract_uint64: uint, uint -> uint
_/_ - divide_double: double, double -> double
_/_ - divide_int64: int, int -> int
_/_ - divide_uint64: uint, uint -> uint
_<=_ - less_equals_{operands}: {types} -> bool
_<_ - less_{operands}: {types} -> bool
_==_ - equals: <A>, <A> -> bool
_>=_ - greater_equals_{operands}: {types} -> bool
_>_ - greater_{operands}: {types} -> bool
_?_:_ - conditional: bool, <A>, <A> -> <A>
_[?_] - list_optindex_optional_int: list(<V>), int -> optional_type(<V>)
_[?_] - optional_list_optindex_optional_int: optional_type(list(<V>)), int -> optional_type(<V>)
_[?_] - map_optindex_optional_value: map(<K>, <V>), <K> -> optional_type(<V>)
_[?_] - optional_map_optindex_optional_value: optional_type(map(<K>, <V>)), <K> -> optional_type(<V>)
_[_] - index_list: list(<A>), int -> <A>
_[_] - index_map: map(<A>, <B>), <A> -> <B>
_[_] - optional_list_index_int: optional_type(list(<V>)), int -> optional_type(<V>)
_[_] - optional_map_index_value: optional_type(map(<K>, <V>)), <K> -> optional_type(<V>)
_||_ - logical_or: bool, bool -> bool
add . quantity_add: kubernetes.Quantity, kubernetes.Quantity -> kubernetes.Quantity
add . quantity_add_int: kubernetes.Quantity, int -> kubernetes.Quantity
allowed . decision_allowed: authz.Decision -> bool
asApproximateFloat . quantity_get_float: kubernetes.Quantity -> double
asInteger . quantity_get_int: kubernetes.Quantity -> int
bool - bool_to_bool: bool -> bool
bool - string_to_bool: string -> bool
bytes - bytes_to_bytes: bytes -> bytes
bytes - string_to_bytes: string -> bytes
cel.@mapInsert - @mapInsert_map_key_value: map(<K>, <V>), <K>, <V> -> map(<K>, <V>)
cel.@mapInsert - @mapInsert_map_map: map(<K>, <V>), map(<K>, <V>) -> map(<K>, <V>)
charAt . string_char_at_int: string, int -> string
check . pathcheck_check: authz.PathCheck, string -> authz.Decision
check . resourcecheck_check: authz.ResourceCheck, string -> authz.Decision
cidr - string_to_cidr: string -> net.CIDR
compareTo . quantity_compare_to: kubernetes.Quantity, kubernetes.Quantity -> int
compareTo . semver_compare_to: kubernetes.Semver, kubernetes.Semver -> int
contains . contains_string: string, string -> bool
containsCIDR . cidr_contains_cidr_string: net.CIDR, string -> bool
containsCIDR . cidr_contains_cidr: net.CIDR, net.CIDR -> bool
containsIP . cidr_contains_ip_string: net.CIDR, string -> bool
containsIP . cidr_contains_ip_ip: net.CIDR, net.IP -> bool
distinct . list_distinct: list(<T>) -> list(<T>)
double - double_to_double: double -> double
double - int64_to_double: int -> double
double - string_to_double: string -> double
double - uint64_to_double: uint -> double
duration - duration_to_duration: Duration -> Duration
duration - string_to_duration: string -> Duration
dyn - to_dyn: <A> -> dyn
endsWith . ends_with_string: string, string -> bool
error . decision_error: authz.Decision -> string
errored . decision_errored: authz.Decision -> bool
family . ip_family: net.IP -> int
fieldSelector . authorizer_fieldselector: authz.ResourceCheck, string -> authz.ResourceCheck
find . string_find_string: string, string -> string
findAll . string_find_all_string: string, string -> list(string)
findAll . string_find_all_string_int: string, string, int -> list(string)
first . list_first: list(<V>) -> optional_type(<V>)
flatten . list_flatten: list(list(<T>)) -> list(<T>)
flatten . list_flatten_int: list(dyn), int -> list(dyn)
format . string_format: string, list(dyn) -> string
format.{format} - format.{format}: -> kubernetes.NamedFormat
format.named - format-named: string -> optional_type(kubernetes.NamedFormat)
getDate . timestamp_to_day_of_month_1_based{zone}: {moment} -> int
getDayOfMonth . timestamp_to_day_of_month{zone}: {moment} -> int
getDayOfWeek . timestamp_to_day_of_week{zone}: {moment} -> int
getDayOfYear . timestamp_to_day_of_year{zone}: {moment} -> int
getEscapedPath . url_get_escaped_path: kubernetes.URL -> string
getFullYear . timestamp_to_year{zone}: {moment} -> int
getHost . url_get_host: kubernetes.URL -> string
getHostname . url_get_hostname: kubernetes.URL -> string
getHours . timestamp_to_hours{zone}: {moment} -> int
getHours . duration_to_hours: Duration -> int
getMilliseconds . timestamp_to_milliseconds{zone}: {moment} -> int
getMilliseconds . duration_to_milliseconds: Duration -> int
getMinutes . timestamp_to_minutes{zone}: {moment} -> int
getMinutes . duration_to_minutes: Duration -> int
getMonth . timestamp_to_month{zone}: {moment} -> int
getPort . url_get_port: kubernetes.URL -> string
getQuery . url_get_query: kubernetes.URL -> map(string, list(string))
getScheme . url_get_scheme: kubernetes.URL -> string
getSeconds . timestamp_to_seconds: Timestamp -> int
getSeconds . timestamp_to_seconds_tz: Timestamp, string -> int
getSeconds . duration_to_seconds: Duration -> int
group . authorizer_group: authz.Authorizer, string -> authz.GroupCheck
hasValue . optional_hasValue: optional_type(<V>) -> bool
includes . list_includes_dyn_dyn: dyn, dyn -> bool
indexOf . string_index_of_string: string, string -> int
indexOf . string_index_of_string_int: string, string, int -> int
indexOf . list_a_index_of_int: list(<A>), <A> -> int
int - int64_to_int64: int -> int
int - double_to_int64: double -> int
int - duration_to_int64: Duration -> int
int - string_to_int64: string -> int
int - timestamp_to_int64: Timestamp -> int
int - uint64_to_int64: uint -> int
ip - string_to_ip: string -> net.IP
ip . cidr_ip: net.CIDR -> net.IP
ip.isCanonical - ip_is_canonical: string -> bool
isCIDR - is_cidr: string -> bool
isGlobalUnicast . ip_is_global_unicast: net.IP -> bool
isGreaterThan . quantity_is_greater_than: kubernetes.Quantity, kubernetes.Quantity -> bool
isGreaterThan . semver_is_greater_than: kubernetes.Semver, kubernetes.Semver -> bool
isIP - is_ip: string -> bool
isInteger . quantity_is_integer: kubernetes.Quantity -> bool
isLessThan . quantity_is_less_than: kubernetes.Quantity, kubernetes.Quantity -> bool
isLessThan . semver_is_less_than: kubernetes.Semver, kubernetes.Semver -> bool
isLinkLocalMulticast . ip_is_link_local_multicast: net.IP -> bool
isLinkLocalUnicast . ip_is_link_local_unicast: net.IP -> bool
isLoopback . ip_is_loopback: net.IP -> bool
isQuantity - is_quantity_string: string -> bool
isSemver - is_semver_string: string -> bool
isSemver - is_semver_string_bool: string, bool -> bool
isSorted . list_{name}_is_sorted_bool: list({item}) -> bool
isURL - is_url_string: string -> bool
isUnspecified . ip_is_unspecified: net.IP -> bool
join . list_join: list(string) -> string
join . list_join_string: list(string), string -> string
labelSelector . authorizer_labelselector: authz.ResourceCheck, string -> authz.ResourceCheck
last . list_last: list(<V>) -> optional_type(<V>)
lastIndexOf . string_last_index_of_string: string, string -> int
lastIndexOf . string_last_index_of_string_int: string, string, int -> int
lastIndexOf . list_a_last_index_of_int: list(<A>), <A> -> int
lists.range - lists_range: int -> list(int)
lowerAscii . string_lower_ascii: string -> string
major . semver_major: kubernetes.Semver -> int
masked . cidr_masked: net.CIDR -> net.CIDR
matches - matches: string, string -> bool
matches . matches_string: string, string -> bool
max . list_{name}_max_{name}: list({item}) -> {item}
min . list_{name}_min_{name}: list({item}) -> {item}
minor . semver_minor: kubernetes.Semver -> int
name . resourcecheck_name: authz.ResourceCheck, string -> authz.ResourceCheck
namespace . resourcecheck_namespace: authz.ResourceCheck, string -> authz.ResourceCheck
optional.none - optional_none: -> optional_type(<V>)
optional.of - optional_of: <V> -> optional_type(<V>)
optional.ofNonZeroValue - optional_ofNonZeroValue: <V> -> optional_type(<V>)
optional.unwrap - optional_unwrap: list(optional_type(<V>)) -> list(<V>)
or . optional_or_optional: optional_type(<V>), optional_type(<V>) -> optional_type(<V>)
orValue . optional_orValue_value: optional_type(<V>), <V> -> <V>
patch . semver_patch: kubernetes.Semver -> int
path . authorizer_path: authz.Authorizer, string -> authz.PathCheck
prefixLength . cidr_prefix_length: net.CIDR -> int
quantity - string_to_quantity: string -> kubernetes.Quantity
reason . decision_reason: authz.Decision -> string
replace . string_replace_string_string: string, string, string -> string
replace . string_replace_string_string_int: string, string, string, int -> string
resource . groupcheck_resource: authz.GroupCheck, string -> authz.ResourceCheck
reverse . list_reverse: list(<T>) -> list(<T>)
semver - string_to_semver: string -> kubernetes.Semver
semver - string_bool_to_semver: string, bool -> kubernetes.Semver
serviceAccount . authorizer_serviceaccount: authz.Authorizer, string, string -> authz.Authorizer
sets.contains - list_sets_contains_list: list(<T>), list(<T>) -> bool
sets.equivalent - list_sets_equivalent_list: list(<T>), list(<T>) -> bool
sets.intersects - list_sets_intersects_list: list(<T>), list(<T>) -> bool
sign - quantity_sign: kubernetes.Quantity -> int
size - size_bytes: bytes -> int
size . bytes_size: bytes -> int
size - size_list: list(<A>) -> int
size . list_size: list(<A>) -> int
size - size_map: map(<A>, <B>) -> int
size . map_size: map(<A>, <B>) -> int
size - size_string: string -> int
size . string_size: string -> int
slice . list_slice: list(<T>), int, int -> list(<T>)
sort . list_{full}_sort: list({item}) -> list({item})
split . string_split_string: string, string -> list(string)
split . string_split_string_int: string, string, int -> list(string)
startsWith . starts_with_string: string, string -> bool
string - string_to_string: string -> string
string - bool_to_string: bool -> string
string - bytes_to_string: bytes -> string
string - double_to_string: double -> string
string - duration_to_string: Duration -> string
string - int64_to_string: int -> string
string - timestamp_to_string: Timestamp -> string
string - uint64_to_string: uint -> string
string - ip_to_string: net.IP -> string
string - cidr_to_string: net.CIDR -> string
strings.quote - strings_quote: string -> string
sub . quantity_sub: kubernetes.Quantity, kubernetes.Quantity -> kubernetes.Quantity
sub . quantity_sub_int: kubernetes.Quantity, int -> kubernetes.Quantity
subresource . resourcecheck_subresource: authz.ResourceCheck, string -> authz.ResourceCheck
substring . string_substring_int: string, int -> string
substring . string_substring_int_int: string, int, int -> string
sum . list_int_sum_int: list(int) -> int
sum . list_uint_sum_uint: list(uint) -> uint
sum . list_double_sum_double: list(double) -> double
sum . list_duration_sum_duration: list(Duration) -> Duration
timestamp - timestamp_to_timestamp: Timestamp -> Timestamp
timestamp - int64_to_timestamp: int -> Timestamp
timestamp - string_to_timestamp: string -> Timestamp
trim . string_trim: string -> string
type - type: <A> -> type(<A>)
uint - uint64_to_uint64: uint -> uint
uint - double_to_uint64: double -> uint
uint - int64_to_uint64: int -> uint
uint - string_to_uint64: string -> uint
unwrapOpt . optional_unwrapOpt: list(optional_type(<V>)) -> list(<V>)
upperAscii . string_upper_ascii: string -> string
url - string_to_url: string -> kubernetes.URL
validate . format-validate: kubernetes.NamedFormat, string -> optional_type(list(string))
value . optional_value: optional_type(<V>) -> <V>
"""
