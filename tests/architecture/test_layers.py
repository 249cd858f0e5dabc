"""The layers of the design, as import-linter sees them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LINTER = Path(sys.executable).with_name("lint-imports")


def lint_imports(cwd: Path, config: Path) -> subprocess.CompletedProcess[str]:
    # The linter looks in the current directory first, before the installed package.
    return subprocess.run(
        [LINTER, "--no-logo", "--no-cache", "--config", config],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_contracts_are_kept(root):
    result = lint_imports(root / "src", root / "pyproject.toml")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize(
    ("module", "text", "contract"),
    [
        ("model/planted.py", "import atoll.engine\n", "faces > engine > drivers > host > model"),
        ("model/planted.py", "import sqlite3\n", "model does no I/O"),
        ("keeper/planted.py", "import click\n", "the keeper is standard library only"),
        ("keeper/planted.py", "import atoll.model.errors\n", "the keeper is standard library only"),
        (
            "model/enclosure.py",
            "import atoll.model.errors\n",
            "what the keeper sees of model imports nothing",
        ),
        (
            "engine/planted.py",
            "import atoll.drivers.workspace\n",
            "engine sees contracts and registry, never a concrete driver",
        ),
    ],
)
def test_planted_violation_is_reported(root, tmp_path, module, text, contract):
    package = tmp_path / "atoll"
    for path in (root / "src" / "atoll").rglob("*.py"):
        # Only the shape of the tree: what the real modules import does not matter here.
        place = tmp_path / path.relative_to(root / "src")
        if "samples" not in place.parts:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    for name in ("__init__.py", "__main__.py"):
        (package / name).touch()
    shutil.copy(root / "pyproject.toml", tmp_path)
    clean = lint_imports(tmp_path, tmp_path / "pyproject.toml")
    assert clean.returncode == 0, clean.stdout + clean.stderr

    (package / module).write_text(text, encoding="utf-8")
    result = lint_imports(tmp_path, tmp_path / "pyproject.toml")
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contract} BROKEN" in result.stdout
