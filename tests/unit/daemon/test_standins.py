"""Addresses for names: stable, bounded, and not taken away while they are in use."""

from __future__ import annotations

from ipaddress import ip_address

from atoll.daemon.egress.standins import RANGE, StandIns


def test_name_keeps_its_address():
    table = StandIns()
    first = table.address_of("a.example")
    assert first in RANGE
    assert first != ip_address("198.18.0.1")
    assert table.address_of("b.example") != first
    assert table.address_of("a.example") == first
    assert table.find_name(first) == "a.example"
    assert table.find_name(ip_address("198.19.0.1")) is None


def test_the_longest_unused_goes_first():
    table = StandIns(most=3)
    a, b, _ = (table.address_of(name) for name in "abc")
    table.address_of("a")
    assert table.address_of("d") == b
    assert table.find_name(b) == "d"
    assert table.address_of("a") == a


def test_no_address_changes_hands_while_a_connection_lives():
    table = StandIns(most=2)
    a, b = table.address_of("a"), table.address_of("b")
    with table.held("a"), table.held("a"):
        with table.held("b"):
            assert table.address_of("c") is None
        assert table.address_of("c") == b
        assert table.address_of("d") == b
    assert table.address_of("e") in (a, b)
    assert len({table.address_of("e"), table.address_of("d")}) == 2
