"""Who is at the other end: the client's address, and how it becomes a subject. Pure functions over texts."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ratekit.errors import ConfigurationError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# One `name=value` of a Forwarded header, with what ends it: another one of the same hop, the next hop, or the line.
_PAIR = re.compile(r"\s*([^\s=;,\"]+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|[^\s;,\"]*)\s*([;,]|$)")
_TEST_CLIENT = "testclient"  # what Starlette's TestClient says in place of an address
X_FORWARDED_FOR, FORWARDED = "x-forwarded-for", "forwarded"


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Which proxies may say on whose behalf they ask: so many hops, or those of some networks. By default none.

    header is the one that they set: a proxy that sets the other one lets clients choose what this one says.
    """

    hops: int = 0
    networks: tuple[_Network, ...] = ()
    header: str = X_FORWARDED_FOR

    @classmethod
    def of(cls, hops: int | Iterable[str] | str | None, header: str = X_FORWARDED_FOR) -> TrustedProxies:
        """Read what a user gives: a number of hops, or networks such as "10.0.0.0/8"."""
        if not isinstance(header, str) or header.lower() not in (X_FORWARDED_FOR, FORWARDED):
            raise ConfigurationError(f"trusted_header {header!r} is neither X-Forwarded-For nor Forwarded")
        if isinstance(hops, int) and not isinstance(hops, bool) and 0 <= hops <= 100:
            return cls(hops=hops, header=header.lower())
        if isinstance(hops, int | float):
            raise ConfigurationError(f"trusted_hops {hops!r} is not a number of proxies between 0 and 100")
        if hops is not None and not isinstance(hops, Iterable):
            raise ConfigurationError(f"trusted_hops {hops!r} is neither a number of proxies nor their networks")
        given = [hops] if isinstance(hops, str | bytes) else list(hops or ())
        return cls(networks=tuple(_network(network) for network in given), header=header.lower())

    @property
    def is_empty(self) -> bool:
        """Whether nobody is trusted, so that only the peer's own address counts."""
        return not self.hops and not self.networks

    def client(self, peer: str | None, lines: Sequence[str]) -> _Address | None:
        """Return the address of the client: of the peer, or of the last one in the header that no trusted proxy is.

        A value that is no address is never taken: then it is the proxy that passed it on which counts.
        """
        address = parse_address(peer)
        if self.is_empty:
            return address
        for distance, text in enumerate(reversed(self._hops_in(lines))):
            if not self._trusts(address, distance):
                break
            claimed = parse_address(text)
            if claimed is None:
                break
            address = claimed
        return address

    def _hops_in(self, lines: Sequence[str]) -> list[str]:
        if self.header == X_FORWARDED_FOR:
            return [value for line in lines for value in line.split(",")]
        return [hop for line in lines for hop in _forwarded_hops(line)]

    def _trusts(self, address: _Address | None, distance: int) -> bool:
        if self.hops:
            return distance < self.hops
        # A peer without an address is at a Unix socket of this machine: the proxy's own.
        return address is None or any(address in network for network in self.networks)


@lru_cache(maxsize=4096)
def peer_subject(peer: str | None) -> str | None:
    """Return the subject of a peer's own address, None if it has none."""
    address = parse_address("127.0.0.1" if peer == _TEST_CLIENT else peer)
    return None if address is None else address_subject(address)


def parse_address(text: str | None) -> _Address | None:
    """Read an address, with or without a port, a zone and brackets; None if it is none."""
    bare = (text or "").strip().strip('"')
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        address = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def address_subject(address: _Address) -> str:
    """Return the subject of an address. One subscriber has a whole /64 of IPv6, and is one subject."""
    if isinstance(address, ipaddress.IPv4Address):
        return f"ip:{address}"
    return f"ip:{ipaddress.ip_network((address, 64), strict=False)}"


def _forwarded_hops(line: str) -> list[str]:
    """Return what each hop of a Forwarded header says after for=. Nothing of a line that is malformed can be trusted."""
    hops, hop, at, end = [], "", 0, ","
    while at < len(line) or end:
        match = _PAIR.match(line, at)
        if match is None:
            return [""]
        if match[1].lower() == "for":
            hop = match[2].strip('"')
        at, end = match.end(), match[3]
        if end != ";":
            hops.append(hop)
            hop = ""
    return hops


def _network(text: str) -> _Network:
    try:
        if not isinstance(text, str):
            raise ValueError
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigurationError(
            f"trusted_hops {text!r} is neither a number of proxies nor a network like '10.0.0.0/8'"
        ) from None
