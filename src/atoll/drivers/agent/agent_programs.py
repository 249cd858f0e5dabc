"""Finds the programs of agents on the host, and their versions."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from atoll.host import process, programs
from atoll.model.errors import DriverError, PrerequisiteError

if TYPE_CHECKING:
    from atoll.model.adapter import AdapterSpec

_TIMEOUT_S: Final = 10.0
_LIMIT_BYTES: Final = 16_384
_LENGTH = 60
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)+(?:[-+][0-9A-Za-z.-]*[0-9A-Za-z])?")


def find_agent_program(spec: AdapterSpec, path: str, *, avoid: Sequence[str]) -> str | None:
    """The program on that PATH, or None; never one that an agent may have written."""
    return programs.find_program(spec.program, path=path, avoid=avoid) if spec.program else None


def read_version(spec: AdapterSpec, program: str, owner: Mapping[str, str]) -> str:
    """The number in the first line that the program prints as its version; empty when there is
    none, and when the program fails or hangs.

    It runs in an empty home, so that it neither reads nor changes the owner's settings, with the
    owner's PATH as far as it can be trusted, for its interpreter.
    """
    with tempfile.TemporaryDirectory(prefix="atoll-version-") as home:
        path = programs.trusted_path(owner.get("PATH", ""))
        request = process.Program(
            (program, *spec.version),
            cwd=home,
            env={**dict(spec.env), "HOME": home, "TMPDIR": home, "PATH": path},
        )
        said = bytearray()
        try:
            ended = process.stream(
                request, said.extend, limit_bytes=_LIMIT_BYTES, timeout_s=_TIMEOUT_S
            )
        except (DriverError, PrerequisiteError):
            return ""
    text = os.fsdecode(bytes(said) or ended.completed.stderr).strip() if ended.is_good else ""
    number = _NUMBER.search(text.partition("\n")[0])
    return number[0][:_LENGTH] if number else ""
