from __future__ import annotations

from atoll.engine.state import kept_logs


def test_the_latest_logs_of_a_project_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_logs, "KEPT", 2)
    names = [f"{number:014d}-0000000{number}.log" for number in range(4)]
    first = kept_logs.new_path(tmp_path, "promotions", "shop-1")
    assert first.parent == tmp_path / "promotions" / "shop-1"
    assert kept_logs.NAME.fullmatch(first.name)
    assert first.parent.stat().st_mode & 0o777 == 0o700
    for name in [*names, "other.txt"]:
        (first.parent / name).touch()
    kept_logs.prune(first.parent)
    assert sorted(path.name for path in first.parent.iterdir()) == [*names[2:], "other.txt"]
