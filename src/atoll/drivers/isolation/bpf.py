"""An assembler for programs of classic BPF. Jumps only go forward, to labels."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

LOAD, AND, RETURN, _GOTO = 0x20, 0x54, 0x06, 0x05
EQUAL, ABOVE, FROM = 0x15, 0x25, 0x35
_FARTHEST = 0xFF
_MOST_INSTRUCTIONS = 4096


class Plain(NamedTuple):
    """Load, mask or return."""

    code: int
    value: int


class Goto(NamedTuple):
    target: str


class Branch(NamedTuple):
    """Continues at the target when the test is true, else at the next line."""

    test: int
    value: int
    target: str


class Label(NamedTuple):
    name: str


Line = Plain | Goto | Branch | Label


def assemble(lines: Sequence[Line]) -> bytes:
    """An array of `struct sock_filter`. Raises ValueError for what the kernel would not take."""
    far: set[int] = set()
    while True:
        distances = _distances(lines, far)
        wider = {
            index
            for index, distance in distances.items()
            if distance > _FARTHEST and isinstance(lines[index], Branch)
        }
        if wider <= far:
            break
        # Longer branches push labels away from other ones.
        far |= wider
    program = b"".join(
        _encode(line, distances.get(index, 0), far=index in far) for index, line in enumerate(lines)
    )
    if len(program) // 8 > _MOST_INSTRUCTIONS:
        raise ValueError(f"{len(program) // 8} instructions, and {_MOST_INSTRUCTIONS} are allowed")
    return program


def _distances(lines: Sequence[Line], far: set[int]) -> dict[int, int]:
    """How many instructions each jump skips, by its line."""
    places = [0]
    labels: dict[str, int] = {}
    for index, line in enumerate(lines):
        if isinstance(line, Label):
            if line.name in labels:
                raise ValueError(f"two labels `{line.name}`")
            labels[line.name] = places[-1]
        places.append(places[-1] + (not isinstance(line, Label)) + (index in far))
    distances = {}
    for index, line in enumerate(lines):
        if isinstance(line, Branch | Goto):
            distances[index] = labels.get(line.target, -1) - places[index + 1]
            if distances[index] < 0:
                raise ValueError(f"no label `{line.target}` ahead of line {index}")
    return distances


def _encode(line: Line, distance: int, *, far: bool) -> bytes:
    match line:
        case Plain():
            return _instruction(line.code, 0, 0, line.value)
        case Goto():
            return _instruction(_GOTO, 0, 0, distance)
        case Branch() if far:
            # A branch reaches 255 instructions; one that must go farther steps into a long jump.
            return _instruction(line.test, 0, 1, line.value) + _encode(
                Goto(line.target), distance, far=False
            )
        case Branch():
            return _instruction(line.test, distance, 0, line.value)
        case Label():
            return b""


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
