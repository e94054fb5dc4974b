# ruff: noqa: E501 - one expression per entry
"""Functions of the standard library, of cel-go's extensions and of Kubernetes, through expressions."""

from __future__ import annotations

import pytest

from drakit.core.objects import Device, from_builtins
from drakit.scheduler.cel.errors import CelError
from drakit.scheduler.cel.selector import compile_selector, device_value

DEVICE = device_value("d.io", from_builtins({}, Device))

TRUE = {
    "conversions": [
        "int(2.9) == 2", "int('-5') == -5", "int(timestamp('1970-01-01T00:01:00Z')) == 60",
        "uint(3) == 3u", "double('1e3') == 1000.0", "bool('t') && !bool('False')",
        "string(1.0) == '1'", "string(1e100) == '1e+100'", "string(b'abc') == 'abc'",
        "string(duration('1m0.5s')) == '60.5s'", "bytes('é').size() == 2", "size('é') == 1",
    ],
    "lists": [
        "[1, 2, 1].distinct() == [1, 2]", "[[1], [2]].flatten() == [1, 2]", "[[[1]]].flatten(1) == [[1]]", "[[[1]]].flatten(2) == [1]",
        "[1, 2, 3].slice(1, 3) == [2, 3]", "[1, 2].reverse() == [2, 1]", "lists.range(3) == [0, 1, 2]",
        "[3, 1, 2].sort() == [1, 2, 3]", "[1, 2].sum() == 3", "[1, 3, 2].max() == 3",
        "[2, 1].min() == 1", "[1, 1, 2].isSorted()", "![2, 1].isSorted()", "[1, 2, 1].indexOf(1) == 0",
        "[1, 2, 1].lastIndexOf(1) == 2", "[1, 2].indexOf(5) == -1", "[1, 2].includes(2)",
        "'a'.includes('a')", "[1].first().value() == 1", "![].last().hasValue()",
        "sets.contains([1, 2], [2])", "!sets.contains([1], [1, 2])", "sets.equivalent([1, 1], [1])", "!sets.equivalent([1, 2], [1])",
        "sets.intersects([1, 2], [2, 3])", "!sets.intersects([1], [2])",
    ],
    "optionals": [
        "!optional.ofNonZeroValue(0).hasValue()", "optional.ofNonZeroValue('a').hasValue()",
        "optional.unwrap([optional.of(1), optional.none()]) == [1]",
    ],
    "quantities": [
        "quantity('1Ki') == quantity('1024')", "quantity('1k').add(quantity('24')).compareTo(quantity('1Ki')) == 0",
        "quantity('2').sub(1).asInteger() == 1", "!quantity('0.5Gi').isInteger()", "sign(quantity('-1')) == -1",
        "quantity('1').isLessThan(quantity('2'))", "!isQuantity('x')", "quantity('1500m').asApproximateFloat() == 1.5",
    ],
    "versions": [
        "semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3",
        "semver('1.0.0-rc.2').isLessThan(semver('1.0.0-rc.10'))", "semver('1.0.0-rc').isLessThan(semver('1.0.0'))",
        "semver('v1.2', true) == semver('1.2.0')", "!isSemver('v1.2.3')", "isSemver('v01.2', true)",
        "semver('1.0.0+a') == semver('1.0.0+b')",
    ],
    "strings": [
        "'abcabc'.indexOf('c', 3) == 5", "'abcabc'.lastIndexOf('a') == 3", "'abc'.charAt(3) == ''",
        "'ÄB'.lowerAscii() == 'Äb'", "'a,b,c'.split(',', 2) == ['a', 'b,c']", "'abc'.split('', 2) == ['a', 'bc']",
        "['a', 'b'].join('-') == 'a-b'", "'aaa'.replace('a', 'b', 2) == 'bba'", "'abc'.substring(1, 2) == 'b'",
        "' \\u3000a '.trim() == 'a'", "strings.quote('a\"\\n') == '\"a\\\\\"\\\\n\"'",
    ],
    "format": [
        "'%s %d %x %X %o %b'.format(['a', 10, 255, 'k', 8, 5]) == 'a 10 ff 6B 10 101'",
        "'%.2f'.format([1234.567]) == '1,234.57'", "'%e'.format([1234.5]) == '1.234500\u202f×\u202f10⁰³'",
        "'%s'.format([[1, 'a', true]]) == '[1, \"a\", true]'", "'100%%'.format([]) == '100%'",
    ],
    "times": [
        "duration('1h30m').getMinutes() == 90", "duration('-1.5s').getMilliseconds() == -1500",
        "timestamp('2024-02-29T23:30:00Z').getDayOfYear() == 59", "timestamp('2024-01-01T00:00:00Z').getDayOfWeek() == 1",
        "timestamp('2024-01-01T00:00:00Z').getHours('+05:30') == 5",
        "string(timestamp('2024-01-01T01:00:00.50+01:00')) == '2024-01-01T00:00:00.5Z'",
        "timestamp('2024-01-01T00:00:10Z') - timestamp('2024-01-01T00:00:00Z') == duration('10s')",
    ],
    "network": [
        "ip('10.0.0.1').family() == 4", "ip.isCanonical('::1') && !ip.isCanonical('::0:1')", "!isIP('::ffff:1.2.3.4')",
        "cidr('10.1.0.0/16').containsIP('10.1.2.3')", "!cidr('10.1.0.0/16').containsCIDR('10.0.0.0/8')",
        "cidr('10.1.2.3/16').masked() == cidr('10.1.0.0/16')", "cidr('10.0.0.0/8').prefixLength() == 8",
        "ip('224.0.0.5').isLinkLocalMulticast()", "!ip('224.0.1.5').isLinkLocalMulticast()",
        "ip('8.8.8.8').isGlobalUnicast() && !ip('255.255.255.255').isGlobalUnicast()", "!isCIDR('10.0.0.0/33')",
    ],
    "urls": [
        "url('https://u@[::1]:80/a b?x=1&x=2').getQuery() == {'x': ['1', '2']}", "url('https://h:80/p').getPort() == '80'",
        "url('https://[::1]:80/').getHostname() == '::1'", "url('/a b').getEscapedPath() == '/a%20b'",
        "!isURL('a b')", "!isURL('https://h:x/')", "url('HTTPS://h/').getScheme() == 'https'",
    ],
    "formats": [
        "!format.dns1123Label().validate('abc').hasValue()", "format.dns1123Label().validate('A').hasValue()",
        "format.named('uuid').hasValue() && !format.named('nope').hasValue()",
        "!format.qualifiedName().validate('a.io/b').hasValue()", "format.qualifiedName().validate('/b').hasValue()",
        "!format.dns1123LabelPrefix().validate('a-').hasValue()", "format.date().validate('2023-02-29').hasValue()",
        "!format.datetime().validate('2024-02-29T00:00:60Z').hasValue()", "format.byte().validate('a').hasValue()",
        "format.labelValue().validate('a b').hasValue()", "!format.uri().validate('https://h/').hasValue()",
    ],
    "regular expressions": [
        "'abc'.matches('^a.c$')", "!'a\\nc'.matches('a.c')", "'a\\nc'.matches('(?s)a.c')", "'ABC'.matches('(?i)b')",
        "'x1y22'.findAll('[0-9]+') == ['1', '22']", "'x1y22'.findAll('[0-9]+', 1) == ['1']", "'abc'.find('z') == ''",
        "'a.b'.matches(r'^\\Qa.b\\E$')", "'a-'.matches('[[:alpha:]][^a-z]')", "!'é'.matches(r'\\w')",
    ],
}  # fmt: skip
FAIL = [
    "int('1.5') == 1", "uint(-1) == 0u", "int(1e30) == 0", "string(b'\\xff') == ''", "[1].slice(1, 0) == []",
    "[[1]].flatten(-1) == []", "[].max() == 1", "dyn([1, 'a']).sort() == []", "lists.range(-1) == []",
    "optional.none().value() == 1", "quantity('1x').isInteger()", "quantity('1500m').asInteger() == 1",
    "'abc'.charAt(4) == ''", "'abc'.substring(2, 1) == ''", "'%s %s'.format(dyn(['a'])) == ''",
    "timestamp(device.driver) == timestamp(device.driver)", "ip(device.driver).family() == 4",
    "url('').getHost() == ''", "'a'.matches(device.driver + '(')", "semver('1.2').major() == 1",
]  # fmt: skip


@pytest.mark.parametrize("text", [text for texts in TRUE.values() for text in texts])
def test_the_expression_is_true(text: str) -> None:
    assert compile_selector(text).matches(DEVICE)


@pytest.mark.parametrize("text", FAIL)
def test_the_expression_is_an_error(text: str) -> None:
    with pytest.raises(CelError):
        compile_selector(text).matches(DEVICE)
