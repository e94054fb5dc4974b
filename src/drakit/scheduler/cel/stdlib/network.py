"""IP addresses and CIDR ranges: Kubernetes' ``ip()`` and ``cidr()``."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.values import Overloads, accepts

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Ip:
    """An address without a zone that is not IPv4-mapped IPv6."""

    address: _Address

    type_name = "net.IP"

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True, slots=True)
class Cidr:
    """An address with a prefix length; bits after the prefix are kept."""

    address: _Address
    bits: int

    type_name = "net.CIDR"

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"

    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """The network, with the bits after the prefix cleared."""
        return ipaddress.ip_network(f"{self.address}/{self.bits}", strict=False)


def parse_ip(text: str) -> Ip:
    """Parse an address. Raises :class:`CelRuntimeError`."""
    if "%" in text:
        raise CelRuntimeError(f'IP address "{text}" with zone value is not allowed')
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise CelRuntimeError(
            f'IP Address "{text}" parse error during conversion from string: {error}'
        ) from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise CelRuntimeError(f'IPv4-mapped IPv6 address "{text}" is not allowed')
    return Ip(address)


def parse_cidr(text: str) -> Cidr:
    """Parse an address with a prefix length. Raises :class:`CelRuntimeError`."""
    address, _, bits = text.rpartition("/")
    if not re.fullmatch(r"0|[1-9][0-9]{0,2}", bits, re.ASCII):
        raise CelRuntimeError(f'network address parse error: "{text}" has no valid prefix length')
    found = parse_ip(address).address
    if int(bits) > found.max_prefixlen:
        raise CelRuntimeError(f'network address parse error: prefix of "{text}" is out of range')
    return Cidr(found, int(bits))


def _contains_ip(outer: Cidr, inner: Ip) -> bool:
    return outer.address.version == inner.address.version and inner.address in outer.network()


def _contains_cidr(outer: Cidr, inner: Cidr) -> bool:
    if outer.address.version != inner.address.version or outer.bits > inner.bits:
        return False
    return outer.network().overlaps(inner.network())


def _is_global_unicast(ip: Ip) -> bool:
    address = ip.address
    local = address.is_unspecified or address.is_loopback or address.is_link_local
    return not (local or address.is_multicast) and str(address) != "255.255.255.255"


def _link_local_multicast(ip: Ip) -> bool:
    address = ip.address
    if isinstance(address, ipaddress.IPv4Address):
        return address in ipaddress.IPv4Network("224.0.0.0/24")
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02


OVERLOADS: Final[Overloads] = {
    "ip": [(parse_ip, (str,)), (lambda cidr: Ip(cidr.address), (Cidr,))],
    "cidr": [(parse_cidr, (str,))],
    "isIP": [(accepts(parse_ip), (str,))],
    "isCIDR": [(accepts(parse_cidr), (str,))],
    "ip.isCanonical": [(lambda text: str(parse_ip(text)) == text, (str,))],
    "family": [(lambda ip: ip.address.version, (Ip,))],
    "isUnspecified": [(lambda ip: ip.address.is_unspecified, (Ip,))],
    "isLoopback": [(lambda ip: ip.address.is_loopback, (Ip,))],
    "isLinkLocalMulticast": [(_link_local_multicast, (Ip,))],
    "isLinkLocalUnicast": [(lambda ip: ip.address.is_link_local, (Ip,))],
    "isGlobalUnicast": [(_is_global_unicast, (Ip,))],
    "containsIP": [
        (_contains_ip, (Cidr, Ip)),
        (lambda cidr, text: _contains_ip(cidr, parse_ip(text)), (Cidr, str)),
    ],
    "containsCIDR": [
        (_contains_cidr, (Cidr, Cidr)),
        (lambda cidr, text: _contains_cidr(cidr, parse_cidr(text)), (Cidr, str)),
    ],
    "masked": [(lambda cidr: Cidr(cidr.network().network_address, cidr.bits), (Cidr,))],
    "prefixLength": [(lambda cidr: cidr.bits, (Cidr,))],
}
