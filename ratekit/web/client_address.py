"""Who is at the other end: the client's address, and how it becomes a subject. Pure functions over texts."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ratekit.core.errors import ConfigurationError

ClientAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# One `name=value` of a Forwarded header, which may be missing, with what ends it: another one of the same hop, the next hop,
# or the line.
_PAIR = re.compile(r"[ \t]*(?:([^\s=;,\"]+)=(\"(?:[^\"\\]|\\.)*\"|[^\s;,\"]*))?[ \t]*([;,]|$)")
_TEST_CLIENT = "testclient"  # what Starlette's TestClient says in place of an address
X_FORWARDED_FOR, FORWARDED = "x-forwarded-for", "forwarded"
SINGLE = ("x-real-ip", "cf-connecting-ip")  # headers with one address: a proxy replaces what a client has sent
TRUSTED_HEADERS = (X_FORWARDED_FOR, FORWARDED, *SINGLE)
UNKNOWN = "ip:unknown"  # the subject of all clients whose address is no address
_log = logging.getLogger("ratekit.web")


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Which proxies may say on whose behalf they ask: so many hops, or those of some networks. By default none.

    header is the one that they set: a proxy that sets another one lets clients choose what this one says.
    """

    hops: int = 0
    networks: tuple[_Network, ...] = ()
    header: str = X_FORWARDED_FOR
    is_given: bool = False  # somebody has said which proxies there are, or that there are none

    @classmethod
    def of(cls, hops: int | Iterable[str] | str | None, header: str = X_FORWARDED_FOR) -> TrustedProxies:
        """Read what a user gives: a number of hops, or networks such as "10.0.0.0/8"."""
        if not isinstance(header, str) or header.lower() not in TRUSTED_HEADERS:
            raise ConfigurationError(f"trusted_header {header!r} is none of {', '.join(TRUSTED_HEADERS)}")
        if hops is None and header.lower() != X_FORWARDED_FOR:
            raise ConfigurationError(
                f"trusted_header {header!r} has no effect without trusted_hops: the number of proxies, or their networks"
            )
        if isinstance(hops, int) and not isinstance(hops, bool) and 0 <= hops <= 100:
            return cls(hops=hops, header=header.lower(), is_given=True)
        if isinstance(hops, int | float):
            raise ConfigurationError(f"trusted_hops {hops!r} is not a number of proxies between 0 and 100")
        if hops is not None and not isinstance(hops, Iterable):
            raise ConfigurationError(f"trusted_hops {hops!r} is neither a number of proxies nor their networks")
        given = [hops] if isinstance(hops, str | bytes) else list(hops or ())
        networks = tuple(_network(network) for network in given)
        return cls(networks=networks, header=header.lower(), is_given=hops is not None)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is trusted, so that only the peer's own address counts."""
        return not self.hops and not self.networks

    def subject(self, peer: str | None, lines: Sequence[str]) -> str:
        """Return the subject of the client. Clients of whom no address is known share one."""
        address = self.client(peer, lines)
        return UNKNOWN if address is None else address_subject(address)

    def client(self, peer: str | None, lines: Sequence[str]) -> ClientAddress | None:
        """Return the address of the client: of the peer, or of the last one in the header that no trusted proxy is.

        A value that is no address is never taken: then it is the proxy that passed it on which counts.
        """
        address = _peer_address(peer)
        if self.is_empty:
            return address
        # A peer without an address is at a Unix socket of this machine: the proxy's own.
        is_trusted = not peer or peer == _TEST_CLIENT or self._holds(address)
        for distance, text in enumerate(reversed(self._hops_in(lines))):
            if not (distance < self.hops if self.hops else is_trusted):
                break
            claimed = parse_address(text)
            if claimed is None:
                break
            address, is_trusted = claimed, self._holds(claimed)
        return address

    def _hops_in(self, lines: Sequence[str]) -> list[str]:
        if self.header == X_FORWARDED_FOR:
            return [value for line in lines for value in line.split(",")]
        if self.header == FORWARDED:
            return [hop for line in lines for hop in _forwarded_hops(line)]
        return list(lines[:1]) if len(set(lines)) == 1 else []

    def _holds(self, address: ClientAddress | None) -> bool:
        return address is not None and any(address in network for network in self.networks)


class ProxyWatch:
    """Warns once of a proxy in front of the server while nobody has said which proxies are trusted.

    Then all clients of the proxy share its address, and one counter. The first thousand requests of private peers are
    looked at, so that later ones cost nothing.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again. For tests."""
        self._left = 1000

    def is_watching(self, peer: str | None) -> bool:
        """Whether the headers of a request of that peer are looked at."""
        return self._left > 0 and _is_private(peer)

    def look(self, peer: str | None, header_lines: Callable[[str], Sequence[str]]) -> None:
        """Look at a request of a private peer. A server that has applied the header itself shows its address as the peer."""
        self._left -= 1
        for name in (X_FORWARDED_FOR, FORWARDED):
            said = ",".join(header_lines(name))
            if said and (peer or "") not in said:
                self._left = 0
                _log.warning(
                    "a request from the private address %s has the header %s, but trusted_hops is not set: if that is a "
                    "proxy, all its clients share one counter. Set trusted_hops to the number of proxies, or to 0",
                    peer,
                    name,
                )
                return


proxy_watch = ProxyWatch()
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
        "fc00::/7", "fe80::/10", "::1/128",
    )
]  # fmt: skip


@lru_cache(maxsize=1024)
def _is_private(peer: str | None) -> bool:
    address = parse_address(peer)
    return address is not None and any(address in network for network in _PRIVATE)


@lru_cache(maxsize=4096)
def peer_subject(peer: str | None) -> str | None:
    """Return the subject of a peer's own address, None if it has none. Peers whose text is no address share one."""
    if not peer:
        return None
    address = _peer_address(peer)
    return UNKNOWN if address is None else address_subject(address)


def _peer_address(peer: str | None) -> ClientAddress | None:
    return parse_address("127.0.0.1" if peer == _TEST_CLIENT else peer)


def parse_address(text: str | None) -> ClientAddress | None:
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
    return _embedded(address) if isinstance(address, ipaddress.IPv6Address) else address


# The first 96 bits of addresses whose last 32 are an IPv4 address: compatible, mapped, translated, and NAT64.
_EMBEDDING = {int(ipaddress.IPv6Address(prefix)) >> 32 for prefix in ("::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::")}


def _embedded(address: ipaddress.IPv6Address) -> ClientAddress:
    """Return the IPv4 address in an IPv6 address, if it has one: else all of IPv4 would share one /64."""
    number = int(address)
    if number >> 32 not in _EMBEDDING or number <= 1:  # :: and ::1 are addresses of their own
        return address
    return ipaddress.IPv4Address(number & 0xFFFFFFFF)


def address_subject(address: ClientAddress) -> str:
    """Return the subject of an address. One subscriber has a whole /64 of IPv6, and is one subject."""
    if isinstance(address, ipaddress.IPv4Address):
        return f"ip:{address}"
    return f"ip:{ipaddress.ip_network((address, 64), strict=False)}"


def _forwarded_hops(line: str) -> list[str]:
    """Return what each hop of a Forwarded header says after for=. Nothing of a line that is malformed can be trusted."""
    hops: list[str] = []
    pairs: list[tuple[str, str]] = []
    at, end = 0, ","
    while end:
        match = _PAIR.match(line, at)
        if match is None:
            return [""]
        at, end = match.end(), match[3]
        if match[1]:
            pairs.append((match[1].lower(), match[2].strip('"')))
        if end != ";" and pairs:
            hops.append(_hop(pairs))
            pairs = []
    return hops


def _hop(pairs: Sequence[tuple[str, str]]) -> str:
    """Return what a hop says after for=; nothing if it says it twice."""
    said = [value for name, value in pairs if name == "for"]
    return said[0] if len(said) == 1 else ""


def _network(text: str) -> _Network:
    try:
        if not isinstance(text, str):
            raise ValueError
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigurationError(
            f"trusted_hops {text!r} is neither a number of proxies nor a network like '10.0.0.0/8'"
        ) from None
