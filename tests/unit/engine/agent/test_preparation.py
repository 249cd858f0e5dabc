"""Files for the private home: the modes in which they arrive, and arrive again."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.contracts import HomeFile
from atoll.engine.agent import preparation


def unpack(home: Path, found: Sequence[HomeFile]) -> None:
    argv = ("/bin/sh", "-c", preparation._UNPACK)
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    subprocess.run(argv, input=preparation.pack(found), env=env, check=True)


def modes(home: Path) -> dict[str, str]:
    return {
        str(path.relative_to(home)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in sorted(home.rglob("*"))
    }


def test_modes(tmp_path: Path) -> None:
    unpack(tmp_path, [
        HomeFile("own.json", b"{}"), HomeFile("script", b"#!/bin/sh\n"),
        HomeFile("skills/one.md", b"one", is_read_only=True),
        HomeFile("skills/run.sh", b"#!/bin/sh\n", is_read_only=True),
    ])  # fmt: skip
    assert modes(tmp_path) == {
        "own.json": "0o600", "script": "0o700", "skills": "0o700", "skills/one.md": "0o400",
        "skills/run.sh": "0o500",
    }  # fmt: skip


def test_read_only_file_is_replaced(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        unpack(tmp_path, [HomeFile("a/CLAUDE.md", content, is_read_only=True)])
        assert (tmp_path / "a" / "CLAUDE.md").read_bytes() == content
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "a" / "CLAUDE.md").unlink()
    (tmp_path / "a" / "CLAUDE.md").symlink_to(tmp_path / "kept")
    unpack(tmp_path, [HomeFile("a/CLAUDE.md", b"third", is_read_only=True)])
    assert (tmp_path / "a" / "CLAUDE.md").read_bytes() == b"third"
    assert (tmp_path / "kept").read_text() == "kept"
