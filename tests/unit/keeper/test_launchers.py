"""Every kind of walls has its launcher."""

from __future__ import annotations

from atoll.keeper import launchers
from atoll.model import enclosure


def test_every_kind_of_walls_has_a_launcher():
    assert [*launchers._LAUNCHERS] == [*enclosure._KINDS["Walls"].values()]
    assert launchers.find_launcher(None) is None
