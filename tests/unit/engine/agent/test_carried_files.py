"""The owner's files that are copied: bounded, without credentials, without links to elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.engine.agent import carried_files
from atoll.model.adapter import Carry

CANARY = "c4n4ry0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / "owner"
    (place / ".claude" / "skills" / "one").mkdir(parents=True)
    (place / ".claude" / "CLAUDE.md").write_text(f"Be brief.\npassword: {CANARY}\n")
    (place / ".claude" / "skills" / "one" / "SKILL.md").write_text("Do it well.\n")
    (place / ".claude" / "skills" / "one" / ".env").write_text(f"TOKEN={CANARY}\n")
    (place / ".claude" / "skills" / "one" / "id_rsa").write_text(CANARY)
    return place


def carry(home: Path, path: str, *only: str) -> tuple[dict[str, bytes], list[str]]:
    files, notes = carried_files.carried([Carry(path=path, only=only)], {"HOME": str(home)})
    return {file.path: file.content for file in files}, notes


def test_file_and_directory_are_copied_without_credentials(home: Path) -> None:
    files, _ = carry(home, "~/.claude/CLAUDE.md")
    assert files[".claude/CLAUDE.md"].startswith(b"Be brief.\n")
    files, notes = carry(home, "~/.claude/skills")
    assert set(files) == {".claude/skills/one/SKILL.md"}
    assert len(notes) == 2
    assert CANARY.encode() not in b"".join(files.values())


def test_copies_are_read_only_unless_the_program_rewrites_them(home: Path) -> None:
    wanted = [Carry(path="~/.claude/CLAUDE.md"), Carry(path="~/.claude/skills", writable=True)]
    files, _ = carried_files.carried(wanted, {"HOME": str(home)})
    assert {file.path: file.is_read_only for file in files} == {
        ".claude/CLAUDE.md": True,
        ".claude/skills/one/SKILL.md": False,
    }


def test_missing_file_is_no_mistake(home: Path) -> None:
    assert carry(home, "~/.claude/nothing") == ({}, [])


def test_link_is_followed_within_the_programs_own_directory_only(home: Path) -> None:
    (home / "private.md").write_text(CANARY)
    (home / ".claude" / "out.md").symlink_to(home / "private.md")
    (home / ".claude" / "etc.md").symlink_to("/etc/hostname")
    (home / ".claude" / "in.md").symlink_to("CLAUDE.md")
    for name in ("out", "etc"):
        files, [note] = carry(home, f"~/.claude/{name}.md")
        assert files == {}
        assert "link" in note
    files, _ = carry(home, "~/.claude/in.md")
    assert files[".claude/in.md"].startswith(b"Be brief.")


def test_sizes_are_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".claude" / "big.md").write_text("x" * (carried_files.FILE_LIMIT_BYTES + 1))
    files, [note] = carry(home, "~/.claude/big.md")
    assert files == {}
    assert "1 MiB" in note
    monkeypatch.setattr(carried_files, "MOST_FILES", 3)
    for number in range(6):
        (home / ".claude" / "skills" / f"{number}.md").write_text("x")
    files, notes = carry(home, "~/.claude/skills")
    assert len(files) == 3
    assert "too large" in notes[-1]
