"""A view ends when nothing uses it, whoever looks at it meanwhile."""

from __future__ import annotations

from atoll.engine.enclosure import views
from atoll.host import view_client
from atoll.host.process import wait_until


def test_a_view_that_is_only_looked_at_ends(project, monkeypatch):
    """The daemon asks every view which files of secrets it has, from time to time."""
    monkeypatch.setattr(views, "IDLE_S", 1.0)
    capsule = project.new("x")
    capsule.run(["true"])
    directory = capsule.record.directory
    looks = []

    def has_ended():
        looks.append(view_client.find_files(directory))
        return not view_client.has_socket(directory)

    assert wait_until(has_ended, timeout_s=60.0, interval_s=0.05)
    assert frozenset() in looks
    assert capsule.run(["echo", "again"]).stdout == b"again\n"
