"""The client's address: the peer's, unless proxies are trusted; what is no address never becomes a key."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekit import ConfigurationError
from ratekit.asgi import RateLimitMiddleware
from ratekit.web.client_address import TrustedProxies, address_subject, parse_address
from ratekit.web.requests import AsgiRequest, FrontRequest, WsgiRequest

PROXY = "10.0.0.1"
TEN = ["10.0.0.0/8", "fd00::/8"]


def asgi_request(peer: str | None, lines: list[str], proxies: TrustedProxies, name: str = "X-Forwarded-For") -> FrontRequest:
    headers = [(name.lower().encode(), line.encode("latin-1", "replace")) for line in lines]
    client = None if peer is None else (peer, 4711)
    return AsgiRequest({"type": "http", "path": "/", "headers": headers, "client": client}, proxies)


def wsgi_request(peer: str | None, lines: list[str], proxies: TrustedProxies, name: str = "X-Forwarded-For") -> FrontRequest:
    environ = {"REQUEST_METHOD": "GET"} | ({} if peer is None else {"REMOTE_ADDR": peer})
    if lines:
        environ[f"HTTP_{name.upper().replace('-', '_')}"] = ", ".join(lines)  # as servers join them
    return WsgiRequest(environ, proxies)


@pytest.fixture(params=[asgi_request, wsgi_request], ids=["asgi", "wsgi"])
def request_of(request):
    return request.param


def client(hops, lines, peer=PROXY, header="X-Forwarded-For") -> str | None:
    """The client's address as a text, of the lines of a header."""
    found = TrustedProxies.of(hops, header).client(peer, lines)
    return None if found is None else str(found)


def forwarded(value: str, hops=1) -> str | None:
    return client(hops, [value], header="Forwarded")


def test_peer_is_the_client_when_nobody_is_trusted(request_of):
    request = request_of("192.0.2.7", ["203.0.113.9"], TrustedProxies())
    assert request.address() == "ip:192.0.2.7"


@pytest.mark.parametrize("nothing", [None, 0, [], ()])
def test_forwarding_headers_are_ignored_unless_trusted(request_of, nothing):
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
        request = request_of(
            "192.0.2.7", ["for=203.0.113.9" if name == "Forwarded" else "203.0.113.9"], TrustedProxies.of(nothing), name
        )
        assert request.address() == "ip:192.0.2.7"


def test_header_of_trusted_proxies_is_read_by_every_front(request_of):
    assert request_of(PROXY, ["203.0.113.9"], TrustedProxies.of(1)).address() == "ip:203.0.113.9"
    proxies = TrustedProxies.of(1, "Forwarded")
    assert request_of(PROXY, ["for=203.0.113.9"], proxies, "Forwarded").address() == "ip:203.0.113.9"


def test_only_the_header_that_proxies_set_is_read(request_of):
    request = request_of(PROXY, ["for=203.0.113.9"], TrustedProxies.of(1), "Forwarded")
    assert request.address() == f"ip:{PROXY}"
    request = request_of(PROXY, ["203.0.113.9"], TrustedProxies.of(1, "forwarded"), "X-Forwarded-For")
    assert request.address() == f"ip:{PROXY}"


@pytest.mark.parametrize(("hops", "expected"), [(1, "192.0.2.3"), (2, "192.0.2.2"), (3, "192.0.2.1"), (9, "192.0.2.1")])
def test_hops_are_counted_from_the_right(hops, expected):
    assert client(hops, ["192.0.2.1, 192.0.2.2,192.0.2.3"]) == expected


def test_what_a_client_puts_in_front_of_the_header_changes_nothing():
    honest = client(1, ["192.0.2.9"])
    assert client(1, ["6.6.6.6, 7.7.7.7, 192.0.2.9"]) == client(1, ['", 192.0.2.9']) == honest == "192.0.2.9"


def test_several_lines_are_one_list(request_of):
    lines = ["192.0.2.1", "192.0.2.2, 192.0.2.3"]
    assert request_of(PROXY, lines, TrustedProxies.of(2)).address() == "ip:192.0.2.2"
    proxies = TrustedProxies.of(1, "Forwarded")
    assert request_of(PROXY, ["for=192.0.2.1", "for=192.0.2.2"], proxies, "Forwarded").address() == "ip:192.0.2.2"


def test_peer_is_the_client_when_the_header_is_missing(request_of):
    assert request_of(PROXY, [], TrustedProxies.of(2)).address() == f"ip:{PROXY}"
    assert request_of(PROXY, [], TrustedProxies.of(TEN)).address() == f"ip:{PROXY}"


def test_trusted_networks_are_walked_from_the_right():
    assert client(TEN, ["6.6.6.6, 192.0.2.9, 10.1.1.1, 10.2.2.2"]) == "192.0.2.9"
    assert client(TEN, ["192.0.2.9, fd00::5, 10.2.2.2"]) == "192.0.2.9"


def test_header_is_ignored_when_the_peer_is_in_no_trusted_network():
    assert client(TEN, ["192.0.2.9"], peer="198.51.100.1") == "198.51.100.1"


def test_first_in_the_header_is_the_client_when_all_are_trusted():
    assert client(TEN, ["10.9.9.9, 10.2.2.2"]) == "10.9.9.9"


def test_one_network_may_be_given_as_a_text():
    assert client("10.0.0.0/8", ["192.0.2.9"]) == "192.0.2.9"
    assert client("10.0.0.1", ["192.0.2.9"]) == "192.0.2.9"


def test_network_holds_a_mapped_peer():
    assert client(TEN, ["192.0.2.9"], peer="::ffff:10.0.0.1") == "192.0.2.9"


@pytest.mark.parametrize("hops", [1, TEN])
def test_peer_of_a_unix_socket_is_the_proxy(hops):
    assert client(hops, ["192.0.2.9"], peer=None) == "192.0.2.9"


def test_no_peer_and_nobody_trusted_is_no_address(request_of):
    assert request_of(None, ["192.0.2.9"], TrustedProxies()).address() is None
    assert request_of("", [], TrustedProxies()).address() is None


@pytest.mark.parametrize("peer", ["unknown", "somebody", "_hidden", "1.2.3", "-"])
def test_peers_that_are_no_addresses_share_one_subject(request_of, peer):
    """A server that trusts everyone passes on what a client has written into X-Forwarded-For."""
    assert request_of(peer, [], TrustedProxies()).address() == "ip:unknown"
    assert request_of(peer, [], TrustedProxies.of(1)).address() == "ip:unknown"


def test_peer_that_is_no_address_is_in_no_trusted_network(request_of):
    assert request_of("unknown", ["6.6.6.6"], TrustedProxies.of(TEN)).address() == "ip:unknown"


@pytest.mark.parametrize("lines", [[], ["unknown"], [""]])
@pytest.mark.parametrize("hops", [1, TEN])
def test_client_behind_a_trusted_socket_that_has_no_address_shares_one_subject(request_of, hops, lines):
    assert request_of(None, lines, TrustedProxies.of(hops)).address() == "ip:unknown"


def test_test_client_of_starlette_is_at_this_machine(request_of):
    """Else an app that limits addresses would limit nobody in its tests."""
    assert request_of("testclient", [], TrustedProxies()).address() == "ip:127.0.0.1"


@pytest.mark.parametrize(
    "bad", ["garbage", "", "1.2.3", "1.2.3.4.5", "256.1.1.1", "1.2.3.4 5", "unknown", "::g", "-", "{x}", "%00"]
)
@pytest.mark.parametrize("hops", [1, 2, TEN])
def test_proxy_counts_when_it_passes_on_what_is_no_address(hops, bad):
    assert client(hops, [f"192.0.2.1, {bad}"]) == PROXY


def test_walk_ends_at_the_trusted_proxy_before_garbage():
    assert client(TEN, ["192.0.2.1, garbage, 10.2.2.2"]) == "10.2.2.2"
    assert client(2, ["garbage, 192.0.2.2"]) == "192.0.2.2"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("for=192.0.2.9", "192.0.2.9"),
        ("For=192.0.2.9", "192.0.2.9"),
        ('for="192.0.2.9"', "192.0.2.9"),
        ('for="192.0.2.9:4711"', "192.0.2.9"),
        ('for="[2001:db8::1]"', "2001:db8::1"),
        ('for="[2001:db8::1]:4711"', "2001:db8::1"),
        ("by=10.0.0.1;for=192.0.2.9;proto=https", "192.0.2.9"),
        ("proto=https; for=192.0.2.9", "192.0.2.9"),
        ("for=6.6.6.6, for=192.0.2.9;by=10.0.0.1", "192.0.2.9"),
    ],
)
def test_forwarded_is_read_in_every_form(value, expected):
    assert forwarded(value) == expected


@pytest.mark.parametrize(
    "value", ["for=unknown", "for=_hidden", 'for="_gazonk"', "by=192.0.2.9", "", "for=", "xfor=192.0.2.9", "192.0.2.9"]
)
def test_proxy_counts_when_forwarded_names_no_address(value):
    assert forwarded(value) == PROXY


@pytest.mark.parametrize(
    "value", ["for=6.6.6.6;, for=192.0.2.9", "for=6.6.6.6,, for=192.0.2.9", ", for=192.0.2.9", ";, for=192.0.2.9;"]
)
def test_what_a_client_leaves_empty_in_forwarded_does_not_hide_what_the_proxy_adds(value):
    assert forwarded(value) == "192.0.2.9"


@pytest.mark.parametrize(
    "value", ["for=192.0.2.9;for=6.6.6.6", "for = 192.0.2.9", "for=192.0.2.9 6.6.6.6", 'for="192.0.2.9']
)
def test_proxy_counts_when_forwarded_is_malformed(value):
    assert forwarded(value) == PROXY


@pytest.mark.parametrize("header", ["X-Real-IP", "CF-Connecting-IP", "cf-connecting-ip"])
@pytest.mark.parametrize("hops", [1, 2, TEN])
def test_header_with_one_address_can_be_trusted(request_of, header, hops):
    proxies = TrustedProxies.of(hops, header)
    assert request_of(PROXY, ["203.0.113.9"], proxies, header).address() == "ip:203.0.113.9"
    assert request_of(PROXY, ["203.0.113.9"], proxies, "X-Forwarded-For").address() == f"ip:{PROXY}"
    assert request_of(PROXY, ["203.0.113.9", "6.6.6.6"], proxies, header).address() == f"ip:{PROXY}"


def test_header_with_one_address_counts_only_from_a_trusted_network(request_of):
    proxies = TrustedProxies.of(TEN, "X-Real-IP")
    assert request_of("198.51.100.1", ["6.6.6.6"], proxies, "X-Real-IP").address() == "ip:198.51.100.1"


def test_comma_in_a_quoted_part_of_forwarded_does_not_choose_the_client():
    assert forwarded('for=192.0.2.9;host="a,for=6.6.6.6"') in ("192.0.2.9", PROXY)
    assert forwarded('for=192.0.2.9;host="a, b"') in ("192.0.2.9", PROXY)


def test_semicolon_in_a_quoted_part_of_forwarded_does_not_choose_the_client():
    assert forwarded('host="a;for=6.6.6.6";for=192.0.2.9') in ("192.0.2.9", PROXY)
    assert forwarded('host="a\\";for=6.6.6.6";for=192.0.2.9') in ("192.0.2.9", PROXY)


def test_quote_that_a_client_leaves_open_in_forwarded_does_not_choose_the_client():
    assert forwarded('for=6.6.6.6;host=", for=192.0.2.9') in ("192.0.2.9", PROXY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.9", "192.0.2.9"),
        (" 192.0.2.9 ", "192.0.2.9"),
        ("192.0.2.9:4711", "192.0.2.9"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("[fe80::1%25eth0]:80", "fe80::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("::ffff:192.0.2.9", "192.0.2.9"),
        ("::ffff:c000:209", "192.0.2.9"),
        ("[::ffff:192.0.2.9]:80", "192.0.2.9"),
        ("64:ff9b::192.0.2.9", "192.0.2.9"),
        ("::192.0.2.9", "192.0.2.9"),
        ("::ffff:0:192.0.2.9", "192.0.2.9"),
        ("::1", "::1"),
        ("::", "::"),
        ("64:ff9c::1", "64:ff9c::1"),
    ],
)
def test_address_is_read_with_ports_brackets_and_zones(text, expected):
    assert str(parse_address(text)) == expected


OTHER_NUMBERS = ["1.2.3.04", "0x7f.1", "2130706433", "\u0661.1.1.1", "1.2.3.4/8", "1:2"]


@pytest.mark.parametrize("text", [None, "", " ", "localhost", "%eth0", "[]", "[", ":", *OTHER_NUMBERS])
def test_what_is_no_address_is_none(text):
    assert parse_address(text) is None


def test_addresses_of_one_ipv6_subscriber_are_one_subject(request_of):
    subjects = {
        request_of(f"2001:db8:0:1:{tail}", [], TrustedProxies()).address() for tail in (":1", ":2", "ffff::9", "1:2:3:4")
    }
    assert subjects == {"ip:2001:db8:0:1::/64"}
    assert request_of("2001:db8:0:2::1", [], TrustedProxies()).address() == "ip:2001:db8:0:2::/64"


@pytest.mark.parametrize("prefix", ["::ffff:", "64:ff9b::", "::"])
def test_clients_of_ipv4_within_ipv6_are_subjects_of_their_own(request_of, prefix):
    """Grouped by /64, everybody behind a NAT64 would share one counter."""
    for address in ("192.0.2.9", "198.51.100.7"):
        assert request_of(f"{prefix}{address}", [], TrustedProxies()).address() == f"ip:{address}"


def test_subject_has_neither_port_nor_zone():
    for text in ("192.0.2.9:1", "192.0.2.9:2", "192.0.2.9"):
        assert address_subject(parse_address(text)) == "ip:192.0.2.9"
    assert address_subject(parse_address("fe80::1%eth0")) == address_subject(parse_address("fe80::2%eth1")) == "ip:fe80::/64"


def is_address_subject(subject: str | None) -> bool:
    if subject is None:
        return True
    kind, _, value = subject.partition(":")
    network = ipaddress.ip_network(value)  # raises on what is no address, and on host bits that were left in
    return (
        kind == "ip"
        and str(network).removesuffix("/32") == value
        and network.prefixlen == (32 if network.version == 4 else 64)
    )


PIECES = [*'0159af:.[]%",;= \x00\n{é', "for=", "192.0.2.9", "10.0.0.2", "2001:db8::1", "::ffff:", "unknown", "_x"]
NEARLY = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(
    lines=st.lists(st.text(max_size=40) | NEARLY, max_size=4),
    peer=st.none() | st.sampled_from([PROXY, "fd00::1", "testclient"]) | NEARLY,
    hops=st.integers(0, 4) | st.just(TEN),
    header=st.sampled_from(["X-Forwarded-For", "Forwarded"]),
)
def test_subject_is_an_address_or_none_whatever_is_sent(lines, peer, hops, header):
    address = TrustedProxies.of(hops, header).client(peer, lines)
    assert is_address_subject(None if address is None else address_subject(address))


@given(address=st.ip_addresses(), port=st.integers(0, 65535))
def test_every_address_is_read_with_a_port_and_without(address, port):
    with_port = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
    assert parse_address(str(address)) == parse_address(with_port)
    assert is_address_subject(address_subject(parse_address(str(address))))


@given(ours=st.lists(st.ip_addresses(v=4), min_size=1, max_size=5), theirs=st.lists(NEARLY, max_size=4))
def test_hops_are_exact_whatever_a_client_puts_in_front(ours, theirs):
    assert client(len(ours), [", ".join([*theirs, *map(str, ours)])]) == str(ours[0])


@pytest.mark.parametrize(
    "hops", [-1, 101, 10**9, True, False, 1.0, float("nan"), "2", "", "x", "10.0.0.0/99", ["10.0.0.0/8", "y"]]
)
def test_trusted_hops_that_make_no_sense_are_refused(hops):
    with pytest.raises(ConfigurationError, match="trusted_hops"):
        TrustedProxies.of(hops)


@pytest.mark.parametrize("hops", [[1], (10,), b"10.0.0.0/8", [None], object()])
def test_trusted_networks_that_are_no_texts_are_refused(hops):
    with pytest.raises(ConfigurationError, match="trusted_hops"):
        TrustedProxies.of(hops)


@pytest.mark.parametrize("header", ["X-Client-IP", "", "forwarded-for", "X_Forwarded_For"])
def test_trusted_header_of_another_name_is_refused(header):
    with pytest.raises(ConfigurationError, match=f"trusted_header {header!r}"):
        TrustedProxies.of(1, header)


@pytest.mark.parametrize("header", ["CF-Connecting-IP", "X-Real-IP", "Forwarded"])
def test_trusted_header_alone_is_refused(header):
    """It would be set by nobody who is trusted, and so be ignored without a word."""
    with pytest.raises(ConfigurationError, match=f"trusted_header '{header}' has no effect without trusted_hops"):
        TrustedProxies.of(None, header)
    assert TrustedProxies.of(0, header).is_empty  # said with the eyes open


def warnings_in(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ratekit.web"]


@pytest.mark.parametrize("peer", [PROXY, "127.0.0.1", "::1", "fd00::5", "172.16.9.9", "100.64.0.1"])
@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded"])
def test_header_of_a_private_peer_is_warned_of_once_while_nobody_is_trusted(request_of, caplog, peer, name):
    for _ in range(3):
        assert request_of(peer, ["203.0.113.9"], TrustedProxies(), name).address().startswith("ip:")
    (message,) = warnings_in(caplog)
    assert peer in message
    assert "trusted_hops" in message


@pytest.mark.parametrize("hops", [0, 1, [], TEN])
def test_nothing_is_warned_of_once_it_is_said_which_proxies_there_are(request_of, caplog, hops):
    request_of(PROXY, ["203.0.113.9"], TrustedProxies.of(hops)).address()
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("peer", ["203.0.113.7", "2001:db8::1", None, "unknown"])
def test_header_of_a_public_peer_is_not_warned_of(request_of, caplog, peer):
    request_of(peer, ["203.0.113.9"], TrustedProxies()).address()
    assert warnings_in(caplog) == []


def test_server_that_has_applied_the_header_itself_is_not_warned_of(request_of, caplog):
    request_of(PROXY, [f"{PROXY}, 10.9.9.9"], TrustedProxies()).address()
    assert warnings_in(caplog) == []


def test_proxy_is_found_behind_a_probe_that_comes_first(caplog, ratekit_store):
    """A load balancer asks for the health of the service, without the header, before it lets clients in."""

    async def app(scope, receive, send):
        pass

    middleware = RateLimitMiddleware(app, store="memory://")
    for lines in ([], [(b"x-forwarded-for", b"203.0.113.9")]):
        scope = {"type": "http", "method": "GET", "path": "/", "headers": lines, "client": (PROXY, 1)}
        asyncio.run(middleware(scope, None, None))
    assert len(warnings_in(caplog)) == 1
