from __future__ import annotations

from pathlib import Path

import pytest

from atoll.drivers.layers.dependency_detection import (
    find_dependency_directories,
    is_dependency_directory,
)

MARKED = (
    ".venv/pyvenv.cfg",
    "env/conda-meta/history",
    "src/shop.egg-info/PKG-INFO",
    "node_modules/.package-lock.json",
    "node_modules/.modules.yaml",
    "node_modules/left-pad/package.json",
    "node_modules/@scope/pad/package.json",
    "target/.rustc_info.json",
    "target/CACHEDIR.TAG",
    "target/maven-status/x",
    "vendor/modules.txt",
    "vendor/composer/installed.json",
    "vendor/serde/.cargo-checksum.json",
    "vendor/bundle/ruby/3.3.0/gems/x",
    "deps/plug/mix.exs",
    "_build/dev/lib/plug/ebin/x",
    "obj/project.assets.json",
    ".gradle/buildOutputCleanup/x",
    "build/CMakeCache.txt",
    "builddir/meson-private/coredata.dat",
    "x64-Debug/CMakeCache.txt",
    "cmake-build-debug/CMakeCache.txt",
    "venv3.12/pyvenv.cfg",
    ".tox/py311/pyvenv.cfg",
)
PLAIN = (
    ".venv/notes",
    "node_modules/README.md",
    "target/main.c",
    "vendor/ours.php",
    "deps/README",
    "build/main.c",
    "obj/model.obj",
    "docs/modules.txt",
    "data/package.json",
)
BESIDE_SOURCES = (
    "newlib/CMakeCache.txt",
    "tool/pyvenv.cfg",
    "tool/conda-meta/history",
    "crate/.rustc_info.json",
    "newlib/CACHEDIR.TAG",
    "newlib/meson-private/coredata.dat",
    "library/composer/installed.json",
    "crates/serde/.cargo-checksum.json",
)


def plant(root: Path, path: str) -> Path:
    target = root / path
    target.parent.mkdir(parents=True)
    target.touch()
    return target


def top(path: str) -> str:
    return "src/shop.egg-info" if path.startswith("src/") else path.partition("/")[0]


@pytest.mark.parametrize("path", MARKED)
def test_marker(tmp_path: Path, path: str) -> None:
    plant(tmp_path, path)
    assert is_dependency_directory(f"{tmp_path}/{top(path)}")


@pytest.mark.parametrize("path", PLAIN)
def test_name_alone_is_no_evidence(tmp_path: Path, path: str) -> None:
    plant(tmp_path, path)
    assert not is_dependency_directory(f"{tmp_path}/{top(path)}")


@pytest.mark.parametrize("path", BESIDE_SOURCES)
def test_evidence_alone_may_lie_beside_sources(tmp_path: Path, path: str) -> None:
    plant(tmp_path, path)
    assert not is_dependency_directory(f"{tmp_path}/{top(path)}")


@pytest.mark.parametrize("path", ["build/CMakeCache.txt", "env/pyvenv.cfg"])
def test_sources_beside_the_evidence(tmp_path: Path, path: str) -> None:
    place = plant(tmp_path, path).parent
    (place / "generated").mkdir()
    (place / "generated/parser.c").touch()
    (place / "config.h").touch()
    assert is_dependency_directory(str(place))
    (place / "main.c").touch()
    assert not is_dependency_directory(str(place))


def test_links_and_repositories_are_not_looked_into(tmp_path: Path) -> None:
    plant(tmp_path, "elsewhere/pyvenv.cfg")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/linked").symlink_to(tmp_path / "elsewhere")
    plant(tmp_path, "checkout/module/.git/HEAD")
    plant(tmp_path, "checkout/module/node_modules/a/package.json")
    plant(tmp_path, "checkout/new/web/node_modules/a/package.json")
    found = find_dependency_directories(f"{tmp_path}/checkout", ["linked", "module", "new"])
    assert found == ["new/web/node_modules"]


def test_depth_is_bounded(tmp_path: Path) -> None:
    plant(tmp_path, "/".join(["a"] * 40) + "/node_modules/x/package.json")
    assert find_dependency_directories(str(tmp_path), ["a"]) == []
