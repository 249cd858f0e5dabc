"""Caches of package managers that capsules share copy-on-write, and what in them is private.

A capsule reads the owner's store and writes to a layer of its own. Only the directories named here
are shared, not those around them, which often hold credentials (`~/.cargo/credentials.toml`,
`~/.npmrc`, `~/.m2/settings.xml`, `~/.gradle/gradle.properties`). `hidden` lists paths in a store
that capsules must not read: git clones record their URL, which may contain a token, and some tools
keep settings there.
"""

from __future__ import annotations

from typing import NamedTuple


class PackageStore(NamedTuple):
    name: str
    """Also the name of the directory with a capsule's changes to the store: never rename one."""
    below_home: str
    """The default path. Below `.cache` and `.local/share` the XDG variables apply."""
    variable: str = ""
    """The variable that sets the store's path; a capsule gets the same variable."""
    roots: tuple[tuple[str, str], ...] = ()
    """Variables that set a parent directory, with the store's path below it. A capsule does not get
    these variables, and has the store at the default path."""
    hidden: tuple[str, ...] = ()
    """Paths in it that no capsule sees, even if they are created while a view is open. A pattern
    hides only what exists when the view is opened: list names as well where they are known."""
    settings: tuple[tuple[str, str], ...] = ()
    """Variables that make the tool work across filesystems."""
    is_path_recorded: bool = False
    """Projects record its path and refuse another one: a capsule sees it where the owner does."""


_SPARSE_INDEXES = ("1949cf8c6b5b557f", "6f17d22bba15001f")
"""What cargo appends to the name of crates.io, from version 1.85 on and before."""

PACKAGE_STORES = (
    PackageStore(
        "npm", ".npm/_cacache",
        roots=(("npm_config_cache", "_cacache"), ("NPM_CONFIG_CACHE", "_cacache")),
    ),
    PackageStore(
        "pnpm", ".local/share/pnpm/store", "npm_config_store_dir",
        roots=(("PNPM_HOME", "store"),),
        # Links to the projects that use the store.
        hidden=("*/projects", *(f"v{number}/projects" for number in range(40))),
        is_path_recorded=True,
    ),
    PackageStore("pnpm-metadata", ".cache/pnpm"),
    PackageStore(
        "yarn", ".cache/yarn", "YARN_CACHE_FOLDER",
        # Clones of git dependencies.
        hidden=(".tmp", *(f"v{number}/.tmp" for number in range(1, 20))),
    ),
    PackageStore("yarn-berry", ".yarn/berry", "YARN_GLOBAL_FOLDER"),
    PackageStore(
        "bun", ".bun/install/cache", "BUN_INSTALL_CACHE_DIR",
        roots=(("BUN_INSTALL", "install/cache"),),
        # Clones of git dependencies, which are named by a hash.
        hidden=("*.git",),
    ),
    PackageStore("pip", ".cache/pip", "PIP_CACHE_DIR"),
    PackageStore(
        "uv", ".cache/uv", "UV_CACHE_DIR",
        hidden=("git-v*", *(f"git-v{number}" for number in range(20))),
        # It would try hard links first and warn that they fail.
        settings=(("UV_LINK_MODE", "copy"),),
    ),
    PackageStore("poetry", ".cache/pypoetry", "POETRY_CACHE_DIR", hidden=("src", "cache/git")),
    # Not the whole registry: an index of any name may be a git clone.
    PackageStore(
        "cargo-cache", ".cargo/registry/cache", roots=(("CARGO_HOME", "registry/cache"),)
    ),
    PackageStore("cargo-src", ".cargo/registry/src", roots=(("CARGO_HOME", "registry/src"),)),
    *(
        PackageStore(
            f"cargo-index-{key}", f".cargo/registry/index/index.crates.io-{key}",
            roots=(("CARGO_HOME", f"registry/index/index.crates.io-{key}"),),
            hidden=(".git",),
        )
        for key in _SPARSE_INDEXES
    ),
    PackageStore(
        "go-modules", "go/pkg/mod", "GOMODCACHE",
        roots=(("GOPATH", "pkg/mod"),),
        hidden=("cache/vcs",),
    ),
    PackageStore("go-build", ".cache/go-build", "GOCACHE"),
    PackageStore("maven", ".m2/repository"),
    PackageStore(
        "gradle", ".gradle/caches/modules-2",
        roots=(("GRADLE_USER_HOME", "caches/modules-2"),),
    ),
    PackageStore(
        "gradle-wrapper", ".gradle/wrapper/dists",
        roots=(("GRADLE_USER_HOME", "wrapper/dists"),),
    ),
    # Its settings may name a remote cache, with a password.
    PackageStore("ccache", ".cache/ccache", "CCACHE_DIR", hidden=("ccache.conf",)),
    PackageStore("ccache-3", ".ccache", hidden=("ccache.conf",)),
)  # fmt: skip
