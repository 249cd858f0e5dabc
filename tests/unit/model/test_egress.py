"""Names and addresses in one form only, and whom a policy lets through."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from atoll.model.egress import (
    Destination,
    EgressRule,
    Policy,
    canonical_address,
    canonical_name,
    canonical_port,
    describe_reserved,
    parse_destination,
)

NOBODY: frozenset[IPv4Address | IPv6Address] = frozenset()
PUBLIC = ip_address("93.184.216.34")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("example.org", "example.org"),
        ("EXAMPLE.Org", "example.org"),
        ("example.org.", "example.org"),
        ("_dmarc.example.org", "_dmarc.example.org"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("registry", "registry"),
        ("a" * 63 + ".org", "a" * 63 + ".org"),
        ("1e100.net", "1e100.net"),
        ("4.example", "4.example"),
    ],
)
def test_names_have_one_form(text, name):
    assert canonical_name(text) == name


ODD_NAMES = [
    "", ".", "..", "example..org", ".example.org", "example.org..",
    "exa mple.org", "example.org ", " example.org", "example.org\t", "example.org\n",
    "example.org\r\nHost: evil", "example.org\0", "allowed.org\0.evil.org", "example.org%00",
    "example%2eorg", "user@example.org", "example.org/", "example.org#", "example.org?x",
    "example.org:443", "example.org\\", "example,org", "ex*mple.org", "*.example.org",
    "bücher.example", "ex\u0430mple.org", "example。org", "ⓔxample.org", "example.org\u200b",
    "[::1]", "::1", "fe80::1%eth0.example.org", "[fe80::1%25eth0]",
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0X7F.1",
    "0177.0.0.1", "017700000001", "127.0.0.1.", "1.2.3.4.", "1.2.3.0x4", "example.org.0x",
    "443.example.123", "-a.org", "a-.org", "a" * 64 + ".org", ".".join(["abc"] * 64),
    "\x7fexample.org", "\xff.org", "\udcff.org", "example.org\x85",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_NAMES)
def test_odd_spellings_are_no_names(text):
    with pytest.raises(ValueError, match="is not"):
        canonical_name(text)


@pytest.mark.parametrize(
    "text",
    [
        "127.1", "0x7f.0.0.1", "0177.0.0.1", "127.0.0.01", "2130706433", "1.2.3", "1.2.3.4.5",
        "[1.2.3.4]", "fe80::1%eth0", "[fe80::1%eth0]", "[::1", "::1]", "::1%", "::ffff:1.2.3.04",
        "1.2.3.4 ", "\u0661.2.3.4", "[]", "", "256.1.1.1", ":::1", "1.2.3.4/32",
    ],
)  # fmt: skip
def test_short_and_odd_addresses_are_none(text):
    assert canonical_address(text) is None


def test_addresses_in_full_are():
    assert canonical_address("1.2.3.4") == ip_address("1.2.3.4")
    assert canonical_address("[2001:DB8:0::1]") == ip_address("2001:db8::1")
    assert canonical_address("2001:db8::1") == ip_address("2001:db8::1")


@pytest.mark.parametrize(
    "text", ["0", "65536", "", "-1", "+80", "080", "8O", "1e3", "\u0664\u0664\u0663", " 80"]
)
def test_odd_ports_are_none(text):
    with pytest.raises(ValueError, match="is not a port"):
        canonical_port(text)


@pytest.mark.parametrize(
    "text",
    [
        "example.org", "example.org:", "example.org:0", "example.org:65536", ":443", "::1:443",
        "[::1]", "[::1]443", "[1.2.3.4]:80", "a:b:443", "user@example.org:443", "127.1:80",
        "443.example.com:https", "[fe80::1%x.example.com]:443", "example.org:443:443",
    ],
)  # fmt: skip
def test_odd_destinations_are_none(text):
    with pytest.raises(ValueError, match=r"is not|has no"):
        parse_destination(text)


def test_destinations():
    assert parse_destination("Example.ORG.:443") == Destination("example.org", 443)
    assert parse_destination("[2001:db8::1]:22") == Destination(ip_address("2001:db8::1"), 22)
    assert parse_destination("1.2.3.4", default_port=80) == Destination(ip_address("1.2.3.4"), 80)
    assert parse_destination("[::1]", default_port=80).text == "[::1]:80"


@pytest.mark.parametrize(
    ("rule", "name", "is_named"),
    [
        ("example.org", "example.org", True),
        ("example.org", "evilexample.org", False),
        ("example.org", "example.org.evil.net", False),
        ("example.org", "www.example.org", False),
        ("*.example.org", "www.example.org", True),
        ("*.example.org", "a.b.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "xexample.org", False),
        ("*.example.org", "example.org.evil.net", False),
        ("*.example.org", "www.example.organic", False),
        ("host:5432", "host", False),
        ("10.0.0.0/8", "10", False),
    ],
)
def test_rules_mean_whole_labels(rule, name, is_named):
    policy = Policy.of("allow", [rule])
    assert policy.judge(Destination(name, 443)).allowed is is_named
    assert policy.knows(name) is is_named


@pytest.mark.parametrize(
    ("rule", "ports", "others"),
    [
        ("example.org", (80, 443), (22, 25, 6379, 8080)),
        ("example.org:22", (22,), (80, 443)),
        ("example.org:*", (1, 22, 443, 65535), ()),
        ("*.org.example:8443", (), (8443,)),
    ],
)
def test_ports(rule, ports, others):
    policy = Policy.of("allow", [rule])
    assert all(policy.judge(Destination("example.org", port)).allowed for port in ports)
    assert not any(policy.judge(Destination("example.org", port)).allowed for port in others)


def test_refusals_name_the_rule_to_ask_for():
    policy = Policy.of("allow", ["example.org"])
    assert policy.judge(Destination("evil.org", 443)).ask == "evil.org"
    verdict = policy.judge(Destination("example.org", 22))
    assert (verdict.ask, verdict.why) == (
        "example.org:22",
        "port 22 of `example.org` is not allowed",
    )
    assert policy.judge(Destination(ip_address("2606::1"), 22)).ask == "[2606::1]:22"


def test_modes():
    wanted = Destination("example.org", 22)
    assert not Policy.of("none", ["example.org:22"]).judge(wanted).allowed
    assert not Policy.of("none", ["example.org:22"]).knows("example.org")
    assert not Policy.of("allow", []).judge(wanted).allowed
    assert Policy.of("open", []).judge(wanted).allowed
    assert Policy.of("open", []).knows("anything.at.all")
    assert Policy.of("none", ["host:1"]).host_ports() == ()
    assert Policy.of("allow", ["host:5432", "host:22", "a.org:1"]).host_ports() == (22, 5432)


@pytest.mark.parametrize(
    "name", ["localhost", "a.localhost", "metadata.google.internal", "metadata", "instance-data"]
)
def test_names_that_are_never_reached(name):
    assert not Policy.of("open", []).judge(Destination(name, 80)).allowed


NEVER = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "::1", "::",
    "169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16",
    "192.0.0.192", "169.254.0.1", "fe80::1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "ff02::1",
    "::ffff:169.254.169.254", "::ffff:127.0.0.1", "::ffff:93.184.216.34", "::127.0.0.1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:1::1",
]  # fmt: skip


@pytest.mark.parametrize("text", NEVER)
@pytest.mark.parametrize("mode", ["allow", "open"])
def test_addresses_that_no_rule_opens(text, mode):
    policy = Policy(mode, (EgressRule.parse("0.0.0.0/0:*"), EgressRule.parse("::/0:*")))
    verdict = policy.judge_address(ip_address(text), 80, NOBODY)
    assert (verdict.allowed, verdict.ask) == (False, "")


PRIVATE = [
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "198.18.0.1",
    "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1",
    "fc00::1", "fd12::1", "fec0::1", "2001:db8::1", "3fff::1", "5f00::1", "4000::1", "100::1",
    "200::1",
]  # fmt: skip


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses_need_a_rule(text):
    address = ip_address(text)
    for policy in (Policy.of("open", []), Policy.of("allow", ["name.example"])):
        verdict = policy.judge_address(address, 5432, NOBODY)
        assert not verdict.allowed
        granted = Policy.of("allow", [verdict.ask])
        assert granted.judge_address(address, 5432, NOBODY).allowed
        assert not granted.judge_address(address, 5433, NOBODY).allowed


@pytest.mark.parametrize("text", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "2a00::1"])
def test_public_addresses(text):
    address = ip_address(text)
    policy = Policy.of("allow", [])
    assert policy.judge_address(address, 443, NOBODY).allowed
    assert not policy.judge_address(address, 443, frozenset([address])).allowed
    assert not policy.judge(Destination(address, 443)).allowed
    assert Policy.of("allow", [text]).judge(Destination(address, 443)).allowed


def test_own_address_by_rule():
    own = frozenset([PUBLIC])
    assert Policy.of("allow", ["93.184.216.34:22"]).judge_address(PUBLIC, 22, own).allowed


@pytest.mark.parametrize(
    ("address", "meaning"),
    [
        ("10.0.0.1", "private"),
        ("fd00::1", "private"),
        ("198.19.255.255", "for benchmarks"),
        ("100.64.0.1", "shared by a carrier"),
        ("203.0.113.9", "for documentation"),
        ("192.88.99.1", "for a special purpose"),
    ],
)
def test_reserved_addresses_are_described(address, meaning):
    assert describe_reserved(ip_address(address)).startswith(meaning)
