"""Names under a wildcard: few enough and short enough to carry little, enough for real use."""

from __future__ import annotations

import pytest

from atoll.daemon.egress.limits import LimitError, NameLimits, WildcardLimits
from atoll.model.egress import Policy

POLICY = Policy.of("allow", ["*.example.org", "*.example.net", "exact.example.org"])
HOUR_S = 3600


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def count_passed(limits, names, policy=POLICY):
    passed = 0
    for name in names:
        try:
            limits.require_lookup(policy, name)
        except LimitError:
            continue
        passed += 1
    return passed


def slowly(clock, names, step_s=0.05):
    """No faster than lookups are allowed."""
    for name in names:
        clock.now += step_s
        yield name


def test_new_names_under_one_wildcard_are_few_an_hour(clock):
    limits = NameLimits(WildcardLimits(), clock)
    names = [f"{number:x}.example.org" for number in range(5000)]
    passed = count_passed(limits, slowly(clock, names))
    assert 500 <= passed <= 500 * (1 + clock.now / HOUR_S)
    # Another wildcard has a budget of its own, and names that are known are still looked up.
    assert count_passed(limits, slowly(clock, ["a.example.net", names[0], names[1]])) == 3
    clock.now += HOUR_S
    assert count_passed(limits, slowly(clock, (f"x{n}.example.org" for n in range(500)))) == 500


def test_exact_names_and_open_networks_have_no_limit(clock):
    """The control, and the owner's way to allow more."""
    limits = NameLimits(WildcardLimits(), clock)
    assert count_passed(limits, ["exact.example.org"] * 5000) == 5000
    names = [f"{'x' * 60}.{'y' * 60}.{'z' * 60}.{number}.example.org" for number in range(5000)]
    assert count_passed(limits, names) == 0
    assert count_passed(limits, names, Policy("open")) == 5000
    assert count_passed(limits, names, Policy.of("allow", names)) == 5000


def test_characters_of_new_names_are_few_an_hour(clock):
    limits = NameLimits(WildcardLimits(), clock)
    names = [f"{number:063d}.{'x' * 60}.example.org" for number in range(500)]
    assert count_passed(limits, slowly(clock, names)) <= 16_384 // 124 + 1


def test_lookups_are_few_a_second(clock):
    limits = NameLimits(WildcardLimits(new_names=10_000, new_characters=1 << 20), clock)
    assert count_passed(limits, (f"n{number}.example.org" for number in range(1000))) == 200
    clock.now += 1
    assert count_passed(limits, (f"m{number}.example.org" for number in range(1000))) == 20
    # What is kept is not looked up, and so not counted; afterwards it is.
    assert count_passed(limits, ["n0.example.org"] * 1000) == 1000
    clock.now += 6
    assert count_passed(limits, (f"n{number}.example.org" for number in range(200))) == 120


@pytest.mark.parametrize(
    "below", ["x" * 63 + "." + "y" * 63 + ".zz", "a.b.c.d.e.f.g.h.i", "x" * 129]
)
def test_long_names_are_refused(clock, below):
    limits = NameLimits(WildcardLimits(), clock)
    name = f"{below}.example.org"
    with pytest.raises(LimitError, match=r"`\*\.example\.org`"):
        limits.require_form(POLICY, name)
    with pytest.raises(LimitError):
        limits.require_lookup(POLICY, name)
    limits.require_form(Policy.of("allow", [name]), name)


@pytest.mark.parametrize(
    "name",
    [
        "bucket-of-some-team-0123456789.s3.dualstack.us-west-2.example.org",
        "a1b2c3d4e5f6g7.example.org",
        "account.privatelink.blob.core.example.org",
        "x" * 63 + ".s3.us-east-1.example.org",
    ],
)
def test_usual_names_pass(clock, name):
    limits = NameLimits(WildcardLimits(), clock)
    limits.require_lookup(POLICY, name)
    assert limits._wildcards


def test_memory_is_bounded(clock):
    limits = NameLimits(WildcardLimits(known=50, new_names=10**6, burst=10**6), clock)
    count_passed(limits, slowly(clock, (f"{n}.example.org" for n in range(1000))))
    assert len(limits._wildcards[".example.org"].known) == 50


def test_withdrawn_rule_has_no_new_budget(clock):
    limits = NameLimits(WildcardLimits(), clock)
    first = count_passed(limits, slowly(clock, (f"{n}.example.org" for n in range(600)), 1))
    limits.require_lookup(Policy.of("allow", ["*.example.net"]), "a.example.net")
    assert first < 600
    more = count_passed(limits, (f"m{n}.example.org" for n in range(100)))
    assert more == 0
