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


def put(home: Path, path: str, text: str) -> Path:
    place = home / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def link(home: Path, path: str, target: str) -> None:
    place = home / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(home / target)


PRIVATE = (
    ".claude/.credentials.json",
    ".claude/history.jsonl",
    ".claude/history.md",
    ".claude/projects/other/CLAUDE.md",
    ".claude/settings.json",
    ".codex/auth.json",
    ".codex/sessions/2026/01/01/AGENTS.md",
    ".config/gh/hosts.yml",
    ".config/goose/secrets.yaml",
    ".config/other/AGENTS.md",
    ".config/rclone/rclone.conf",
    ".gemini/oauth_creds.json",
    ".ssh/id_rsa",
    ".ssh/CLAUDE.md",
    "notes/private.txt",
    "secrets/CLAUDE.md",
)


@pytest.mark.parametrize("target", PRIVATE)
@pytest.mark.parametrize(
    "item",
    [
        "~/.claude/CLAUDE.md",
        "~/.codex/AGENTS.md",
        "~/.config/amp/AGENTS.md",
        "~/.config/goose/.goosehints",
    ],
)
def test_item_is_not_a_link_to_private_files(home: Path, item: str, target: str) -> None:
    put(home, target, "c4n4ry prose without any form\n")
    link(home, item[2:], target)
    files, notes = carry(home, item)
    assert files == {}
    assert len(notes) == 1


@pytest.mark.parametrize("target", PRIVATE)
@pytest.mark.parametrize(
    ("item", "place"),
    [("~/.claude/skills", ".claude/skills/s/x.md"), ("~/.config/opencode/agent", "")],
)
def test_link_in_a_directory_does_not_leave_it(
    home: Path, item: str, place: str, target: str
) -> None:
    put(home, target, "c4n4ry prose without any form\n")
    link(home, place or f"{item[2:]}/a.md", target)
    link(home, f"{item[2:]}/below", str(Path(target).parent))
    files, notes = carry(home, item)
    assert b"c4n4ry prose" not in b"".join(files.values())
    assert sum("it is a link" in note for note in notes) == 2


def test_settings_are_not_a_link_to_a_login(home: Path) -> None:
    put(home, ".config/gh/hosts.yml", "github.com:\n  user: ada\n")
    link(home, ".aider.conf.yml", ".config/gh/hosts.yml")
    assert carry(home, "~/.aider.conf.yml")[0] == {}
    login = put(home, ".copilot/config.json", '{"mcpServers": {"canary": 1}}')
    link(home, ".copilot/mcp-config.json", ".copilot/config.json")
    files, [note] = carry(home, "~/.copilot/mcp-config.json", "mcpServers")
    assert files == {}
    assert "private files" in note
    login.rename(home / ".copilot" / "other.json")
    link(home, ".copilot/mcp-config.json", ".copilot/other.json")
    assert len(carry(home, "~/.copilot/mcp-config.json", "mcpServers")[0]) == 1


def test_secret_rule_holds_for_the_real_name(home: Path) -> None:
    put(home, ".claude/skills/one/plain.pem", "-----BEGIN PRIVATE KEY-----\nx\n")
    link(home, ".claude/skills/one/a.md", ".claude/skills/one/plain.pem")
    link(home, ".claude/skills/one/b.md", ".claude/skills/one/.env")
    put(home, ".claude/skills/one/.git/notes.md", "x")
    link(home, ".claude/skills/one/c.md", ".claude/skills/one/.git/notes.md")
    link(home, ".claude/skills/one/d.md", ".claude/skills/one/SKILL.md")
    files, _ = carry(home, "~/.claude/skills")
    assert sorted(files) == [".claude/skills/one/SKILL.md", ".claude/skills/one/d.md"]


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (".claude/CLAUDE.md", "dotfiles/claude/CLAUDE.md"),
        (".claude/CLAUDE.md", "projects/stow/claude/.claude/CLAUDE.md"),
        (".claude/CLAUDE.md", ".dotfiles/claude/CLAUDE.md"),
        (".claude/CLAUDE.md", ".claude/work.md"),
        (".codex/AGENTS.md", ".claude/CLAUDE.md"),
        (".config/goose/.goosehints", "dotfiles/.goosehints"),
    ],
)
def test_link_of_a_dotfile_manager_is_followed(home: Path, path: str, target: str) -> None:
    put(home, target, "Be brief.\n")
    link(home, path, target)
    files, notes = carry(home, f"~/{path}")
    assert (files, notes) == ({path: b"Be brief.\n"}, [])


def test_directory_that_is_a_link_is_followed(home: Path) -> None:
    put(home, "dotfiles/skills/two/SKILL.md", "Do it.\n")
    (home / ".agents").mkdir()
    (home / ".agents" / "skills").symlink_to("../dotfiles/skills")
    files, _ = carry(home, "~/.agents/skills")
    assert set(files) == {".agents/skills/two/SKILL.md"}
    (home / ".agents" / "prompts").symlink_to("../dotfiles/skills")
    files, [note] = carry(home, "~/.agents/prompts")
    assert files == {}
    assert "another kind" in note


def test_directory_around_an_item_may_be_elsewhere(home: Path, tmp_path: Path) -> None:
    (home / ".claude").rename(tmp_path / "elsewhere")
    (home / ".claude").symlink_to(tmp_path / "elsewhere")
    files, _ = carry(home, "~/.claude/skills")
    assert set(files) == {".claude/skills/one/SKILL.md"}


def test_sizes_are_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".claude" / "big.md").write_text("x" * (carried_files.FILE_LIMIT_BYTES + 1))
    files, [note] = carry(home, "~/.claude/big.md")
    assert files == {}
    assert "1 MiB" in note
    monkeypatch.setattr(carried_files, "MOST_FILES", 3)
    for number in range(6):
        (home / ".claude" / "skills" / f"{number}.md").write_text("x")
    # The directory `one` counts, too.
    files, notes = carry(home, "~/.claude/skills")
    assert len(files) == 2
    assert "too large" in notes[-1]


def test_files_that_cannot_be_copied_count_and_are_reported_in_short(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried_files, "MOST_FILES", 30)
    for number in range(60):
        (home / ".claude" / "skills" / f".env.{number:02}").write_text("KEY=1")
    (home / ".claude" / "skills" / "one" / "SKILL.md").unlink()
    files, notes = carry(home, "~/.claude/skills")
    assert files == {}
    assert len(notes) == carried_files.MOST_NOTES + 2
    assert notes[-2].endswith(" more files were not copied")
    assert "too large" in notes[-1]


def test_pictures_of_skills_are_left_out_without_a_word(home: Path) -> None:
    (home / ".claude" / "skills" / "one" / "icon.png").write_bytes(b"\x89PNG\xff")
    files, notes = carry(home, "~/.claude/skills")
    assert not any(".png" in note for note in notes)
    assert not any(name.endswith(".png") for name in files)
    (home / ".claude" / "CLAUDE.md").write_bytes(b"\x89PNG\xff")
    assert len(carry(home, "~/.claude/CLAUDE.md")[1]) == 1
