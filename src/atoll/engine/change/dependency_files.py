"""The manifests and lock files of package managers among changed files."""

from __future__ import annotations

import re
from typing import NamedTuple

from atoll.engine.change.changes import Changes, FileChange

_MANIFESTS = frozenset({
    "package.json", "pnpm-workspace.yaml", "deno.json", "deno.jsonc", "bower.json",
    "pyproject.toml", "setup.py", "setup.cfg", "pipfile", "environment.yml", "environment.yaml",
    "conda.yaml", "pixi.toml", "cargo.toml", "go.mod", "go.work", "gemfile", "composer.json",
    "pom.xml", "build.gradle", "build.gradle.kts", "libs.versions.toml", "build.sbt", "mix.exs",
    "rebar.config", "package.swift", "podfile", "cartfile", "pubspec.yaml", "conanfile.txt",
    "conanfile.py", "vcpkg.json", "directory.packages.props", "packages.config",
    "paket.dependencies", "build.zig.zon", "shard.yml", "stack.yaml", "package.yaml", "cpanfile",
    "deps.edn", "project.clj", "project.toml", "flake.nix", "description", "gleam.toml", "elm.json",
})  # fmt: skip
_LOCKS = frozenset({
    "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock",
    "bun.lockb", "deno.lock", "poetry.lock", "uv.lock", "pdm.lock", "pipfile.lock", "pylock.toml",
    "conda-lock.yml", "pixi.lock", "cargo.lock", "go.sum", "go.work.sum", "gemfile.lock",
    "gems.locked", "composer.lock", "gradle.lockfile", "buildscript-gradle.lockfile",
    "verification-metadata.xml", "mix.lock", "rebar.lock", "package.resolved", "podfile.lock",
    "cartfile.resolved", "pubspec.lock", "conan.lock", "packages.lock.json", "paket.lock",
    "shard.lock", "stack.yaml.lock", "cabal.project.freeze", "manifest.toml", "flake.lock",
    "devbox.lock", "mise.lock", ".terraform.lock.hcl", "chart.lock", "renv.lock",
    "module.bazel.lock",
})  # fmt: skip
_REQUIREMENTS = re.compile(
    r"(?:(?:[\w.-]*requirements[\w.-]*|[\w.-]*constraints[\w.-]*)\.(?:txt|in)"
    r"|pylock\.[\w-]+\.toml|[\w.-]+\.(?:csproj|fsproj|vbproj|gemspec|cabal))"
)


class DependencyFiles(NamedTuple):
    """Changed files that decide which packages are installed."""

    manifests: tuple[FileChange, ...] = ()
    locks: tuple[FileChange, ...] = ()


def find_dependency_files(changes: Changes) -> DependencyFiles:
    return DependencyFiles(
        tuple(file for file in changes.files if is_manifest(file.path)),
        tuple(file for file in changes.files if is_lock(file.path)),
    )


def is_manifest(path: str) -> bool:
    name = _name(path)
    if name in _MANIFESTS or _REQUIREMENTS.fullmatch(name):
        return not is_lock(path)
    return name.endswith((".txt", ".in")) and "/requirements/" in f"/{path.lower()}"


def is_lock(path: str) -> bool:
    name = _name(path)
    return name in _LOCKS or name.startswith("pylock.")


def _name(path: str) -> str:
    return path.rpartition("/")[2].lower()
