"""Which agents there are, also where the user's settings have mistakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from atoll.engine.agent import selection
from atoll.model.errors import SpecError

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = """
[agents.good]
program = "good"
commands = { headless = ["good", "{prompt}"] }
[agents.bad]
progam = "bad"
[agents.mute]
program = "mute"
commands = { headless = ["mute"] }
"""


def test_sound_agents_are_listed_beside_mistakes(tmp_path: Path) -> None:
    config = tmp_path / "atoll" / "config.toml"
    config.parent.mkdir()
    config.write_text(SETTINGS)
    warnings: list[str] = []
    session = SimpleNamespace(owner={"XDG_CONFIG_HOME": str(tmp_path)}, warn=warnings.append)
    with pytest.raises(SpecError):
        selection.adapters(session)  # type: ignore[arg-type]
    found = selection._sound_adapters(session)  # type: ignore[arg-type]
    assert {"claude", "good"} <= set(found)
    assert not {"bad", "mute"} & set(found)
    assert [f"{config}:6: `agents.bad.progam`: unknown key" in warnings[0], len(warnings)] == [
        True,
        2,
    ]
    assert "has no `{prompt}`" in warnings[1]
