"""Which of the owner's toolchains a sandbox sees, besides those of the system.

They are found by their usual places below HOME, by the variables that name their roots, and by
PATH. Nothing is read from a project, and nothing inside one is shown. Only the parts that hold
programs are shown, never a directory that is or contains a private one (`never_shown`).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from atoll.drivers.isolation.hidden_paths import NeverShown
from atoll.drivers.isolation.package_stores import usual_paths
from atoll.host.programs import is_below

_WHOLE = ("",)
_NOT_HIDDEN = ("*",)
"""Without `.lock`: what can be opened can be locked by `flock`, and the owner's uv would wait."""
_PREFIX = ("bin", "sbin", "lib", "lib64", "libexec", "include", "share")
_BESIDE_PROGRAMS = (*_PREFIX, "lib32", "conf", "jmods", "legal", "pkg", "src", "opt", "Cellar")
"""Directories beside a `bin` that its programs need, if both are in a prefix of their own."""
_VENV_FILE = "pyvenv.cfg"
"""Makes a Python look for its packages beside it; without the file it is the system's Python."""
_IN_PREFIXES = frozenset(
    {
        *_BESIDE_PROGRAMS, "etc", "var", "man", "doc", "docs", "ssl", "api", "misc", "test",
        "tests", "examples", "demo", "sample", "tools", "shell", "Homebrew", "Caskroom",
        "Frameworks", "condabin", "conda-meta", "envs", "pkgs", "compiler_compat", "jre",
        "__pycache__",
    }
)  # fmt: skip
"""A directory with other entries is not an installation prefix."""
_NOWHERE = ("/proc", "/sys", "/dev", "/etc", "/boot")
"""Nothing is shown at these names, wherever it comes from."""


class _Toolchain(NamedTuple):
    below_home: str
    variable: str = ""
    """Names the place in the owner's environment, if it is elsewhere."""
    parts: tuple[str, ...] = _WHOLE
    """What of it holds programs, as patterns."""


_CONDA = (*_PREFIX, "condabin", "conda-meta", "envs", "ssl", "compiler_compat", "*-linux-gnu")
_PIPX = ("venvs", "py", "shared/bin", "shared/lib", "shared/pyvenv.cfg")
_TOOLCHAINS = (
    _Toolchain(".pyenv", "PYENV_ROOT"),
    _Toolchain(".nvm", "NVM_DIR", ("versions", "alias", "*.sh", "nvm-exec", "bash_completion")),
    _Toolchain(".rustup", "RUSTUP_HOME"),
    _Toolchain(".cargo", "CARGO_HOME", ("bin", "env")),
    _Toolchain(".volta", "VOLTA_HOME", ("bin", "tools", "layout.*")),
    _Toolchain(".asdf", "ASDF_DATA_DIR", ("installs", "plugins", "shims", *_PREFIX, "*.sh")),
    _Toolchain(".asdf", "ASDF_DIR", ("installs", "plugins", "shims", *_PREFIX, "*.sh")),
    _Toolchain(".sdkman", "SDKMAN_DIR", ("candidates", "bin", "libexec", "src", "var")),
    _Toolchain(".rbenv", "RBENV_ROOT"),
    _Toolchain(".nodenv", "NODENV_ROOT"),
    _Toolchain(".goenv", "GOENV_ROOT"),
    _Toolchain(".jenv", "JENV_ROOT"),
    _Toolchain(".juliaup", "", ("bin", "julia-*", "juliaup.json")),
    _Toolchain(".ghcup", "", ("bin", "ghc", "hls", "lib", "share")),
    _Toolchain(".elan", "ELAN_HOME"),
    _Toolchain(".opam", "OPAMROOT", ("*/bin", "*/sbin", "*/lib", "*/share")),
    _Toolchain(".bun", "BUN_INSTALL", ("bin", "install/global")),
    _Toolchain(".deno", "DENO_INSTALL", ("bin",)),
    _Toolchain(
        ".dotnet", "DOTNET_ROOT",
        ("dotnet", "host", "sdk", "sdk-manifests", "shared", "packs", "templates", "tools"),
    ),
    _Toolchain(".linuxbrew", "", (*_PREFIX, "opt", "Cellar", "Homebrew")),
    _Toolchain(".local/bin"),
    _Toolchain(".local/lib", "", ("python3*", "node_modules")),
    _Toolchain(".local/share/uv/python", "UV_PYTHON_INSTALL_DIR", _NOT_HIDDEN),
    _Toolchain(".local/share/uv/tools", "UV_TOOL_DIR", _NOT_HIDDEN),
    _Toolchain(".local/share/mise", "MISE_DATA_DIR", ("installs", "shims", "plugins")),
    _Toolchain(".local/share/pipx", "PIPX_HOME", _PIPX),
    _Toolchain(".local/pipx", "", _PIPX),
    _Toolchain(".local/share/pypoetry/venv"),
    _Toolchain(
        ".local/share/pnpm", "PNPM_HOME", ("pnpm", "pnpx", "bin", "global", "nodejs", ".tools")
    ),
    _Toolchain(".local/share/fnm", "FNM_DIR", ("node-versions", "aliases")),
    _Toolchain(".local/share/rtx", "", ("installs", "shims", "plugins")),
    _Toolchain(".fnm", "", ("node-versions", "aliases")),
    _Toolchain(".poetry", "POETRY_HOME", ("bin", "lib", "venv")),
    _Toolchain(".pixi", "PIXI_HOME", ("bin", "envs")),
    _Toolchain("go", "GOPATH", ("bin",)),
    _Toolchain("sdk", "", ("go*",)),
    _Toolchain("miniconda3", "CONDA_ROOT", _CONDA),
    _Toolchain("miniforge3", "", _CONDA),
    _Toolchain("anaconda3", "", _CONDA),
    _Toolchain(".conda", "", ("envs",)),
    _Toolchain(".npm-global", "", ("bin", "lib")),
    _Toolchain("n", "N_PREFIX", ("bin", "lib", "include", "n")),
    _Toolchain(".swiftly", "", ("bin", "toolchains", "env.sh")),
    _Toolchain(".zvm"),
    _Toolchain(".local/share/claude/versions"),
    _Toolchain(".claude/local"),
    _Toolchain(".local/share/cursor-agent/versions"),
    _Toolchain(".opencode/bin"),
    _Toolchain(".amp/bin"),
    _Toolchain("", "GOROOT"),
    _Toolchain("", "JAVA_HOME"),
    _Toolchain("", "ANDROID_HOME"),
)  # fmt: skip
"""Usual locations of compilers and interpreters. Caches are not among the parts: package stores are
shown copy-on-write (`package_stores.py`), and other caches not at all."""


class VisibleToolchain(NamedTuple):
    """A directory or file of the host."""

    at: str
    """Its path inside: the same path that the owner uses."""
    source: str
    """What it is, without links."""


class Toolchains(NamedTuple):
    shown: tuple[VisibleToolchain, ...]
    refused: tuple[str, ...]
    """What was asked for and is not shown, each with the reason."""


def find(owner: Mapping[str, str], roots: Sequence[str] = ()) -> Toolchains:
    """The owner's programs and what they need; nothing below one of `roots`, which are the
    project, workspaces and Atoll's home.
    """
    never = NeverShown(owner, roots)
    shown: dict[str, VisibleToolchain] = {}
    refused: dict[str, None] = {}
    for place, is_asked in _candidates(owner, never):
        source = os.path.realpath(place)
        reason = never.why(source)
        if reason is None and is_below(place, (*never.roots, *_NOWHERE)):
            reason = "its path is in a project, in Atoll's home or in a system directory"
        if reason is not None:
            if is_asked:
                refused[f"{place}: {reason}"] = None
        elif os.path.exists(source):
            shown[place] = VisibleToolchain(place, source)
    return Toolchains(tuple(shown.values()), tuple(refused))


def _candidates(owner: Mapping[str, str], never: NeverShown) -> Iterator[tuple[str, bool]]:
    """Places that exist, and whether the owner's environment names them."""
    home = owner.get("HOME", "")
    for toolchain in _TOOLCHAINS:
        named = owner.get(toolchain.variable, "") if toolchain.variable else ""
        roots = [(named, True)] if os.path.isabs(named) else []
        if toolchain.below_home and os.path.isabs(home):
            roots.append((f"{home}/{toolchain.below_home}", False))
        for root, is_asked in roots:
            for part in toolchain.parts:
                found = glob.glob(f"{glob.escape(os.path.normpath(root))}/{part}".rstrip("/"))
                yield from ((place, is_asked) for place in sorted(found))
    stores = usual_paths(owner)
    for entry in owner.get("PATH", "").split(":"):
        if os.path.isabs(entry) and os.path.isdir(entry):
            yield from _around(os.path.normpath(entry), never, stores)


def _around(programs: str, never: NeverShown, stores: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A directory of PATH, with what belongs to it where it has a prefix of its own.

    One that has a package store in it, as that of pnpm, is shown without the store, to which the
    capsule's tools write.
    """
    # One that may not be shown as a whole is not shown in parts: it is refused below.
    if never.why(os.path.realpath(programs)) is None and _holds_store(programs, stores):
        held = sorted(glob.glob(f"{glob.escape(programs)}/*"))
        yield from ((place, True) for place in held if not _holds_store(place, stores))
    else:
        yield programs, True
    prefix, name = os.path.split(programs)
    if name == "shims":
        # They only look for the programs, which are beside them.
        parts: tuple[str, ...] = ("versions", "libexec")
    elif name in ("bin", "sbin"):
        parts = _BESIDE_PROGRAMS
    else:
        return
    if never.why(os.path.realpath(prefix)) is None and (name == "shims" or _is_prefix(prefix)):
        found = (f"{prefix}/{part}" for part in parts)
        yield from ((place, False) for place in found if os.path.isdir(place))
        venv = f"{prefix}/{_VENV_FILE}"
        # A link could name any file of the owner's.
        if name == "bin" and os.path.isfile(venv) and not os.path.islink(venv):
            yield venv, False


def _holds_store(place: str, stores: Sequence[str]) -> bool:
    return any(is_below(store, [place]) for store in stores)


def _is_prefix(place: str) -> bool:
    """Whether it contains only what an installation creates."""
    try:
        with os.scandir(place) as listing:
            return all(entry.name in _IN_PREFIXES or not entry.is_dir() for entry in listing)
    except OSError:
        return False
