"""The package's own source as text, for rules that read code instead of running it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "atoll"
FEWEST_MODULES = 10


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> dict[str, str]:
    """Module path inside the package → text. The samples are data, not code of ours."""
    found = {
        path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.is_relative_to(PACKAGE / "samples")
    }
    assert len(found) >= FEWEST_MODULES, f"only {len(found)} modules in {PACKAGE}"
    return found


@pytest.fixture
def warn(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`warn("engine/x.py: 700 lines")`: listed after the test run, also from another worker."""
    return lambda text: record_property("warning", text)
