from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atoll.engine.network import urls
from atoll.model.errors import PrerequisiteError, SpecError
from atoll.model.state import ProjectRecord


def project(name, number):
    return ProjectRecord(f"{name}-{number:08x}", name, "/r", f"/r/{number}")


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
        with pytest.raises(SpecError):
            urls.router_port(session)


def test_no_port_is_free(session, monkeypatch):
    monkeypatch.setattr(urls, "_LAST", urls._FIRST - 1)
    with pytest.raises(PrerequisiteError):
        urls.router_port(session)


def test_url():
    assert urls.url(7080, "web", "fix--shop") == "http://web.fix--shop.localhost:7080"


SHOP = project("shop", 1)


def site(capsule, record=SHOP, label=None):
    return urls.site_label(capsule, record, label or record.name)


def test_site_is_one_label():
    assert site("fix") == "fix--shop"
    assert site("fix", label="shop-00000001") == "fix--shop-00000001"


@pytest.mark.parametrize("capsule", ["xn", "xn--fix", "a--b", "a---b", "c" * 40])
def test_site_of_unusual_names_has_a_hash(capsule):
    record = project("p" * 40, 1)
    found = site(capsule, record)
    assert found.count("--") == 2
    assert not found.startswith("xn--")
    assert len(found) <= 63
    assert found == site(capsule, record)
    assert found != site(capsule, project("p" * 40, 2)), "a project of the same name"


NAMES = st.from_regex(r"[a-c](?:[a-c-]{0,38}[a-c])?", fullmatch=True)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=8, unique=True))
@example([("a--b", "c"), ("a", "b--c"), ("a", "b-c"), ("a-b", "c")])
@example([("xn", "a"), ("x-n", "a")])
def test_two_capsules_never_share_a_site(pairs):
    projects = [project(name, number) for number, name in enumerate({p for _, p in pairs})]
    labels = urls.project_labels(projects)
    by_name = {record.name: record for record in projects}
    sites = [urls.site_label(c, by_name[p], labels[by_name[p].id]) for c, p in pairs]
    assert len(set(sites)) == len(sites)
    for found in sites:
        assert len(found) <= 63
        assert found.strip("-") == found
        assert not found.startswith("xn--")
