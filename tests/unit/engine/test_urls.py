from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from atoll.engine import urls
from atoll.model.errors import PrerequisiteError, SpecError
from atoll.model.state import Project


def project(name, number):
    return Project(f"{name}-{number:08x}", name, "/r", f"/r/{number}")


@pytest.fixture
def session(tmp_path):
    (tmp_path / "locks").mkdir()
    return SimpleNamespace(home=tmp_path, owner={})


def test_first_project_has_the_name_and_each_later_one_a_suffix():
    projects = [project("shop", 1), project("blog", 2), project("shop", 3), project("shop", 4)]
    assert list(urls.project_labels(projects).values()) == [
        "shop", "blog", "shop-00000003", "shop-00000004",
    ]  # fmt: skip


def test_labels_never_meet():
    projects = [
        project("shop-00000003", 1),
        project("shop", 2),
        project("shop", 3),
        project("Shöp!", 4),
        project("!!", 5),
        project("project", 6),
    ]
    labels = list(urls.project_labels(projects).values())
    assert len(set(labels)) == len(projects)
    assert all(len(label) <= 63 and label.strip("-") == label for label in labels)


def test_port_is_chosen_once(session, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = probe.getsockname()[1]
        monkeypatch.setattr(urls, "_FIRST", first)
        monkeypatch.setattr(urls, "_LAST", first + 50)
        chosen = urls.router_port(session)
        assert first < chosen <= first + 50
    # The first one is free now; what was chosen stays.
    assert urls.router_port(session) == chosen
    assert (session.home / "router-port").read_text() == f"{chosen}\n"


def test_owners_word_counts(session):
    session.owner = {"ATOLL_ROUTER_PORT": "8080"}
    assert urls.router_port(session) == 8080
    session.owner = {}
    assert urls.router_port(session) == 8080, "others must know it"
    for word in ("0", "65536", "http", "-1", "٣"):
        session.owner = {"ATOLL_ROUTER_PORT": word}
        with pytest.raises(SpecError, match="is not a port"):
            urls.router_port(session)


def test_no_port_is_free(session, monkeypatch):
    monkeypatch.setattr(urls, "_LAST", urls._FIRST - 1)
    with pytest.raises(PrerequisiteError, match="for the router"):
        urls.router_port(session)


def test_url():
    assert urls.url(7080, "web", "fix", "shop") == "http://web.fix.shop.localhost:7080"
