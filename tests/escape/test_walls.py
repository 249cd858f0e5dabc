"""Every attempt of `atoll verify`: held at level `sandbox`, and not held where there is no wall."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atoll.drivers.isolation.syscalls import ARCHITECTURES
from atoll.engine.verify import inside
from atoll.engine.verify.attack import WALLS
from present import present

ATTEMPTS = [attempt for wall in WALLS for attempt in wall.attempts]
STAGE_OF = {
    "plain": "plain",
    "root": "plain",
    "user": "plain",
    "lax": "lax",
    "machine": "machine",
}
CONTROLS = [
    (who, attempt)
    for who, without in (("root", {"user"}), ("user", {"root", "machine"}))
    for attempt in ATTEMPTS
    if attempt.control not in without
]
NEEDS_RESOURCE = {"P35", "P36"}
CAP_SYS_RESOURCE = 24


def named(value):
    return value if isinstance(value, str) else value.id


@pytest.mark.parametrize("who", ["root", "user"])
@pytest.mark.parametrize("attempt", ATTEMPTS, ids=named)
def test_wall_holds(rehearsed, who, attempt):
    verdict, detail = rehearsed(who)["sandbox"][attempt.id]
    assert verdict == "held", f"{attempt.title}: {detail}"


@pytest.mark.parametrize(("who", "attempt"), CONTROLS, ids=named)
def test_control_gets_through(rehearsed, who, attempt):
    verdict, detail = rehearsed(who)[STAGE_OF[attempt.control]][attempt.id]
    if detail in {"ENOSYS", "EAFNOSUPPORT"}:
        pytest.skip(f"this kernel has no such thing: {detail}")
    if attempt.id in NEEDS_RESOURCE and not has_capability(CAP_SYS_RESOURCE):
        pytest.skip("this root has not the privilege that the control needs")
    assert verdict == "gave way", f"{attempt.title}: {detail}"


def has_capability(number):
    text = Path("/proc/self/status").read_text()
    return bool(int(present(re.search(r"CapEff:\s*(\w+)", text))[1], 16) & 1 << number)


def test_ids_are_those_of_one_attempt():
    names = [attempt.id for attempt in ATTEMPTS]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[FPNRSGZ]\d\d[a-z]?", name) for name in names)


def test_system_calls_have_their_numbers():
    """The program inside cannot import them: a wrong one would count as held."""
    table = present(re.search(r"^NUMBERS = \{(.*?)^\}", inside.PROGRAM, re.MULTILINE | re.DOTALL))[
        1
    ]
    found = re.findall(r'"(\w+)": \((\w+), (\w+)\)', table)
    assert len(found) == table.count(": (")
    for name, *numbers in found:
        for machine, number in zip(("x86_64", "aarch64"), numbers, strict=True):
            known = ARCHITECTURES[machine].numbers
            if number == "None":
                assert name not in known
            elif name in known:
                assert known[name] == int(number), (machine, name)
