"""The engine on the shipped fakes, without git, views and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atoll.engine.capsule import parts
from layered_world import LayeredWorld, NotedPart, plug_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LayeredWorld]:
    plug_in(monkeypatch)
    made = LayeredWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def noted(world: LayeredWorld) -> NotedPart:
    """A part that all capsules have, after the ones of the engine."""
    part = NotedPart("noted")
    parts.register(part)
    return part
