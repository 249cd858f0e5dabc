"""The checkout as a whole: docstrings, the library's face, no trace of the machine, changelog."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import atoll

if TYPE_CHECKING:
    from pathlib import Path

FEWEST_FILES = 20


def without_docstring(sources: dict[str, str]) -> list[str]:
    """Modules that hold code but do not state their law."""
    return [
        f"{path}: no docstring"
        for path, text in sources.items()
        if (tree := ast.parse(text, path)).body and ast.get_docstring(tree) is None
    ]


def unequal_faces(module: ModuleType) -> list[str]:
    """Differences between what a module declares in `__all__` and what it shows."""
    declared = set(module.__all__)
    shown = {
        name
        for name in dir(module)
        if not name.startswith("_")
        and not isinstance(getattr(module, name), ModuleType)
        and name not in {"annotations", "TYPE_CHECKING"}
    }
    problems = [f"`{name}` is shown but not declared" for name in sorted(shown - declared)]
    return problems + [
        f"`{name}` is declared but missing"
        for name in sorted(declared)
        if not hasattr(module, name)
    ]


def traces_of(directory: Path, files: dict[str, str]) -> list[str]:
    """Files that name the place where this checkout happens to lie."""
    place = re.compile(rf"(?<![\w.~-]){re.escape(str(directory))}(?![\w-])")
    return [name for name, text in files.items() if place.search(text)]


def files_of(root: Path) -> dict[str, str]:
    """Every file that is, or is about to be, tracked."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if listing.returncode:
        pytest.skip(f"not a git checkout: {listing.stderr.strip()}")
    return {
        name: (root / name).read_text(encoding="utf-8", errors="replace")
        for name in listing.stdout.split("\0")
        if name and (root / name).is_file()
    }


def changelog(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, cwd / "tools" / "changelog", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def small_tree(root, tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "changes").mkdir()
    (tmp_path / "tools" / "changelog").write_bytes((root / "tools" / "changelog").read_bytes())
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\nIntro.\n", encoding="utf-8")
    return tmp_path


def test_docstrings(sources):
    assert without_docstring(sources) == []


def test_missing_docstring_is_reported():
    assert without_docstring({"a.py": "x = 1\n"}) == ["a.py: no docstring"]
    assert without_docstring({"a.py": '"""Law."""\nx = 1\n', "__init__.py": ""}) == []


def test_face():
    assert unequal_faces(atoll) == []


def test_unequal_face_is_reported():
    module = ModuleType("planted")
    module.__all__ = ["present", "absent"]  # type: ignore[attr-defined]
    module.present = module.hidden = 1  # type: ignore[attr-defined]
    assert unequal_faces(module) == [
        "`hidden` is shown but not declared",
        "`absent` is declared but missing",
    ]


def test_no_file_names_this_machine(root):
    files = files_of(root)
    assert len(files) >= FEWEST_FILES
    assert traces_of(root, files) == []


def test_trace_of_the_machine_is_reported(tmp_path):
    place = tmp_path / "checkout"
    files = {
        "a.md": f"see {place}/src",
        "b.md": f"cd '{place}'",
        "c.md": f"{place}-2 and x{place}",
    }
    assert traces_of(place, files) == ["a.md", "b.md"]


def test_fragments_are_well_formed(root):
    result = changelog(root)
    assert result.returncode == 0, result.stderr


def test_release_folds_the_fragments(small_tree):
    (small_tree / "changes" / "README.md").write_text("About.\n", encoding="utf-8")
    (small_tree / "changes" / "walls.security.md").write_text("Walls.\n", encoding="utf-8")
    (small_tree / "changes" / "demo.added.md").write_text(
        "A demo,\nin two lines.\n", encoding="utf-8"
    )
    assert changelog(small_tree, "--release", "1.2.0").returncode == 0
    text = (small_tree / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.fullmatch(
        r"# Changelog\n\nIntro\.\n\n## 1\.2\.0 \(\d{4}-\d\d-\d\d\)\n\n"
        r"### Security\n\n- Walls\.\n\n### Added\n\n- A demo,\n  in two lines\.\n",
        text,
    )
    assert [path.name for path in (small_tree / "changes").iterdir()] == ["README.md"]

    (small_tree / "changes" / "later.fixed.md").write_text("Later.\n", encoding="utf-8")
    assert changelog(small_tree, "--release", "1.2.0").returncode == 2
    assert changelog(small_tree, "--release", "1.3.0").returncode == 0
    text = (small_tree / "CHANGELOG.md").read_text(encoding="utf-8")
    assert text.index("Intro.") < text.index("## 1.3.0") < text.index("## 1.2.0")


@pytest.mark.parametrize("name", ["walls.md", "walls.broken.md", "walls.added.txt", "a b.added.md"])
def test_bad_fragment_names_are_refused(small_tree, name):
    (small_tree / "changes" / name).write_text("Text.\n", encoding="utf-8")
    result = changelog(small_tree)
    assert result.returncode == 2
    assert name in result.stderr
