"""Addresses for names: stable, bounded, and never those of another name too soon."""

from __future__ import annotations

import os
from ipaddress import ip_address

import pytest

from atoll.daemon.egress.synthetic_addresses import FILE, FIRST, RANGE, START, SyntheticAddresses
from present import present


def test_name_keeps_its_address(tmp_path):
    table = SyntheticAddresses(tmp_path)
    first = present(table.address_of("a.example"))
    assert first in RANGE
    assert first != ip_address("198.18.0.1")
    assert table.address_of("b.example") != first
    assert table.address_of("a.example") == first
    assert table.find_name(first) == "a.example"
    assert table.find_name(ip_address("198.19.0.1")) is None
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_restart_keeps_the_meaning_of_addresses(tmp_path):
    first = present(SyntheticAddresses(tmp_path).address_of("a.example"))
    table = SyntheticAddresses(tmp_path)
    assert table.address_of("b.example") != first
    assert table.find_name(first) == "a.example"
    assert SyntheticAddresses(tmp_path).address_of("a.example") == first
    # Control: without the file, the address of `a` reaches `b`.
    (tmp_path / FILE).unlink()
    table = SyntheticAddresses(tmp_path)
    assert table.address_of("b.example") == first
    assert table.find_name(first) == "b.example"


def test_addresses_of_a_version_without_a_file_are_not_assigned(tmp_path):
    former = {RANGE[FIRST + number] for number in range(4096)}
    table = SyntheticAddresses(tmp_path)
    assert not former & {table.address_of(f"n{number}.example") for number in range(5000)}


def test_longest_unused_name_goes_first_and_its_address_means_nothing(tmp_path):
    table = SyntheticAddresses(tmp_path, most=3)
    a, b, c = (present(table.address_of(name)) for name in "abc")
    table.address_of("a")
    d = table.address_of("d")
    assert d not in (a, b, c)
    assert table.find_name(b) is None
    assert table.address_of("b") not in (a, b, c, d)
    assert table.address_of("a") == a


@pytest.mark.parametrize("restarts", [False, True])
def test_address_is_used_again_only_after_all_others(tmp_path, restarts):
    size, last = START + 8 - FIRST, START + 7
    table = SyntheticAddresses(tmp_path, most=3, last=last)
    given = []
    for number in range(2 * size):
        if restarts and number % 100 == 0:
            table = SyntheticAddresses(tmp_path, most=3, last=last)
        given.append(table.address_of(f"n{number}"))
    assert len(set(given[:size])) == size
    assert given[size:] == given[:size]


def test_no_address_changes_hands_while_a_connection_lives(tmp_path):
    table = SyntheticAddresses(tmp_path, most=2)
    a, b = present(table.address_of("a")), table.address_of("b")
    with table.held("a"), table.held("a"):
        with table.held("b"):
            assert table.address_of("c") is None
        assert table.address_of("c") not in (a, b)
        assert table.address_of("d") is not None
        assert table.find_name(a) == "a"
    table.address_of("e")
    assert table.find_name(a) is None


def test_connection_that_lives_keeps_its_address_around_the_ring(tmp_path):
    table = SyntheticAddresses(tmp_path, most=3, last=START + 7)
    a = present(table.address_of("a"))
    with table.held("a"):
        given = {table.address_of(f"n{number}") for number in range(2 * (START + 8 - FIRST))}
    assert a not in given
    assert table.find_name(a) == "a"


def test_file_is_bounded(tmp_path):
    table = SyntheticAddresses(tmp_path, most=10)
    for number in range(1000):
        table.address_of(f"n{number}.example")
    assert len((tmp_path / FILE).read_bytes().splitlines()) <= 51
    again = SyntheticAddresses(tmp_path, most=10)
    assert again.address_of("n999.example") == table.address_of("n999.example")
    assert os.listdir(tmp_path) == [FILE]


def test_address_that_cannot_be_saved_is_not_handed_out(tmp_path):
    table = SyntheticAddresses(tmp_path)
    known = table.address_of("a.example")
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert table.address_of("b.example") is None
    assert table.address_of("a.example") == known
    (tmp_path / FILE).rmdir()
    assert table.address_of("b.example") is not None


def test_line_that_was_cut_short_is_dropped(tmp_path):
    first = present(SyntheticAddresses(tmp_path).address_of("a.example"))
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"43")
    table = SyntheticAddresses(tmp_path)
    second = present(table.address_of("b.example"))
    again = SyntheticAddresses(tmp_path)
    assert (again.find_name(first), again.find_name(second)) == ("a.example", "b.example")


@pytest.mark.parametrize(
    "content", [b"x\n", b"1 a\n", b"999999 a\n", b"5000 A\n", b"\n", b"-1 a\n"]
)
def test_damaged_file_closes_the_way_out(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(OSError, match="is damaged"):
        SyntheticAddresses(tmp_path)


@pytest.mark.parametrize("kind", ["link", "fifo", "large"])
def test_file_that_is_none_of_ours_closes_the_way_out(tmp_path, kind):
    victim = tmp_path / "victim"
    victim.write_text("")
    match kind:
        case "link":
            (tmp_path / FILE).symlink_to(victim)
        case "fifo":
            os.mkfifo(tmp_path / FILE)
        case _:
            with (tmp_path / FILE).open("wb") as file:
                file.truncate(1 << 30)
    with pytest.raises(OSError, match=r"link|regular|larger"):
        SyntheticAddresses(tmp_path)
    assert victim.read_text() == ""
