"""`atoll demo` does what it says, says what it observed, and leaves nothing."""

from __future__ import annotations

import json

import pytest

from atoll.engine.demo import Demo
from atoll.model.race import RaceState

pytestmark = pytest.mark.slow


def test_everything_is_as_promised_and_nothing_is_left(
    atoll, atoll_home, tmp_path, monkeypatch, processes_with
):
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    said = atoll("demo", "--json", timeout_s=240)
    data = json.loads(said.stdout)["data"]
    assert data["as_promised"]
    assert len(data["promises"]) == 11
    assert all(promise["kept"] for promise in data["promises"])
    found = {one["name"]: one for one in data["comparison"]["candidates"]}
    assert sorted(found) == ["mend-cheating", "mend-fast", "mend-slow"]
    cheating = found["mend-cheating"]
    assert [check["status"] for check in cheating["checks"]] == ["passed", "passed"]
    assert (cheating["base_tests"], cheating["crosstests"]["passed"]) == ("failed", 0)
    calls = {name: one["figures"]["receipt_calls"]["value"] for name, one in found.items()}
    assert calls["mend-fast"] < calls["mend-slow"] / 100
    assert list(place.iterdir()) == []
    assert not atoll_home.exists()
    assert processes_with(str(place)) == []


def test_what_is_not_observed_is_not_promised(tmp_path, git, processes_with):
    """The slow attempt is as fast as the other one; the demo is kept."""
    demo = Demo(tmp_path)
    attempts = demo.root / "attempts"
    text = (attempts / "fast.py").read_text()
    (attempts / "slow.py").write_text(text.replace("print(", "print('not slow',", 1))
    git("commit", "--quiet", "-m", "not slow", "--", "attempts", cwd=demo.root)
    try:
        status = demo.race()
        demo.compare()
        picked = demo.pick()
    finally:
        demo.close(keep=True)
    assert status.race.state is RaceState.FINISHED
    assert not demo.is_as_promised
    missed = [promise.text for promise in demo.promises if not promise.is_kept]
    assert any("function calls" in text for text in missed)
    assert "mend-cheating" in picked.choice.rejected
    assert (tmp_path / "home").is_dir()
    assert processes_with(str(tmp_path)) == []
