"""Which directories count as a package store, whatever variables say."""

from __future__ import annotations

import pytest

from atoll.drivers.isolation import package_stores
from atoll.drivers.isolation.package_stores import find_stores, variables_of
from atoll.host import programs
from atoll.model.package_stores import PACKAGE_STORES


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "_untrusted", set())
    made = tmp_path / "me"
    made.mkdir()
    return made


def found(home, *, roots=(), **variables):
    """By name: where each store is inside, and which directory it is."""
    owner = {"HOME": str(home), **{key: str(value) for key, value in variables.items()}}
    stores = find_stores(owner, home=str(home), workspace=str(home / "project"), roots=roots)
    return {store.name: (at, source) for store, at, source in stores}


def make(place):
    place.mkdir(parents=True)
    return place


@pytest.mark.parametrize("store", PACKAGE_STORES, ids=lambda store: store.name)
def test_the_default_place(home, store):
    default = str(home / store.below_home)
    assert found(home)[store.name] == (default, "")
    make(home / store.below_home)
    assert found(home)[store.name] == (default, default)


PRIVATE = (
    "",
    ".ssh",
    ".config",
    ".cache",
    ".cache/mozilla",
    ".gnupg/sub",
    ".m2",
    ".cargo",
    ".local",
)
VARIABLES = [store.variable for store in PACKAGE_STORES if store.variable]


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("private", PRIVATE)
def test_a_variable_that_names_a_private_place_shares_nothing(home, variable, private):
    place = home / private
    place.mkdir(parents=True, exist_ok=True)
    make(home / ".cargo/credentials")
    sources = {source for _, source in found(home, **{variable: place}).values()}
    assert sources == {""}


@pytest.mark.parametrize(
    ("variable", "inner"),
    [("XDG_CACHE_HOME", "uv"), ("XDG_DATA_HOME", "pnpm/store"), ("CARGO_HOME", "registry"),
     ("GRADLE_USER_HOME", "wrapper/dists"), ("GOPATH", "pkg/mod"), ("PNPM_HOME", "store"),
     ("npm_config_cache", "_cacache")],
)  # fmt: skip
@pytest.mark.parametrize("private", [".ssh", ".config/x", "Documents"])
def test_a_variable_that_names_a_directory_in_a_private_place(home, variable, inner, private):
    make(home / private / inner)
    stores = found(home, **{variable: home / private})
    assert {source for _, source in stores.values()} == {""}


def test_nothing_of_a_project_or_of_atolls_home_is_shared(home, tmp_path):
    project = make(tmp_path / "project")
    make(project / "cache")
    link = home / ".cache"
    link.mkdir()
    (link / "uv").symlink_to(project / "cache")
    assert found(home, roots=[str(project)])["uv"][1] == ""
    for place in (project, project / "cache", tmp_path):
        assert found(home, roots=[str(project)], PIP_CACHE_DIR=place)["pip"][1] == ""


def test_a_link_to_a_private_place_shares_nothing(home):
    make(home / ".ssh")
    make(home / ".npm")
    (home / ".npm/_cacache").symlink_to(home / ".ssh")
    assert found(home)["npm"][1] == ""


def test_a_link_in_the_place_of_a_store_beside_the_project_shares_nothing(
    home, tmp_path, monkeypatch
):
    disk = make(tmp_path / "disk")
    project, private = make(disk / "project"), make(home / "private")
    store = disk / ".pnpm-store"
    monkeypatch.setattr(package_stores, "_beside_project", lambda *_: [str(store)])
    store.mkdir()
    assert found(home, roots=[str(project)])["pnpm"][1] == str(store)
    # The filesystem is the project's own, and the store came with a clone.
    assert found(home, roots=[str(disk)])["pnpm"][1] == ""
    store.rmdir()
    store.symlink_to(private)
    for roots in ([str(project)], [str(disk)]):
        assert found(home, roots=roots)["pnpm"][1] == ""


def test_elsewhere(home, tmp_path):
    data = tmp_path / "data"
    for name in ("uv", "cargo/registry/cache", "go/pkg/mod", "gradle/caches/modules-2", "xdg/pip"):
        make(data / name)
    stores = found(
        home, UV_CACHE_DIR=data / "uv", CARGO_HOME=data / "cargo", GOPATH=f"{data}/go:/other",
        GRADLE_USER_HOME=data / "gradle", XDG_CACHE_HOME=data / "xdg",
    )  # fmt: skip
    assert stores["uv"] == (f"{data}/uv", f"{data}/uv")
    place = "registry/cache"
    assert stores["cargo-cache"] == (f"{home}/.cargo/{place}", f"{data}/cargo/{place}")
    assert stores["go-modules"] == (f"{home}/go/pkg/mod", f"{data}/go/pkg/mod")
    assert stores["gradle"][1] == f"{data}/gradle/caches/modules-2"
    assert stores["pip"] == (f"{home}/.cache/pip", f"{data}/xdg/pip")


def test_variables_inside_are_those_of_stores_at_another_place(home, tmp_path):
    make(tmp_path / "uv")
    make(home / ".cache/pip")
    owner = {"HOME": str(home), "UV_CACHE_DIR": f"{tmp_path}/uv", "GOCACHE": "/nonexistent"}
    stores = find_stores(owner, home=str(home), workspace="/project", roots=())
    assert variables_of(stores) == {"UV_CACHE_DIR": f"{tmp_path}/uv", "UV_LINK_MODE": "copy"}


def test_names_are_directories_and_differ():
    names = [store.name for store in PACKAGE_STORES]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)
