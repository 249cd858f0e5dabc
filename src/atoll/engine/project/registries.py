"""The hosts of the package registries that this machine's tools use.

They come from the tools' own commands, configuration files and environment, and are cached until a
tool or its configuration changes. The tools run outside of every project, so that no project's
configuration is read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from atoll.engine.state.session import Session
from atoll.host import files, programs
from atoll.host.process import run
from atoll.model.errors import AtollError
from atoll.model.presets import FOUND

_CACHE = "registries.json"
_URL = re.compile(r"https?://(?:[^/\s@\"']*@)?([A-Za-z0-9.-]+)")
_CARGO_DEFAULT = re.compile(r"(?:registry is|packages in) ([a-z0-9-]+(?:\.[a-z0-9-]+)+)")
"""In the help of `cargo search`. Configuration files name replacements only, and `cargo config get`
is not in released versions: the help is the only place where cargo states its default."""
_PIP_INDEX = re.compile(r"^\S*?\.(?:extra-)?index-url=.*", re.MULTILINE)
"""Other settings have URLs too, such as `proxy`, which are no registries."""
_PIP_DEFAULT_INDEX = re.compile(r"^\S*?\.index-url=", re.MULTILINE)
_PIP_DEFAULT = """
from pip._internal.models.index import PyPI
print(PyPI.url, "https://" + PyPI.file_storage_domain)
"""
"""Pip's default index, and the host of its files. This is a private module of pip, for want of
anything better: no command or option prints that host, and without it nothing can be installed from
the default index. A pip that no longer has the module adds no host; a configured index is used
without it. Host names of registries are not kept here, so that a mirror is never bypassed."""
_MAX_BYTES = 1 << 20
_TIMEOUT_S = 20.0
_ENVIRONMENT = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX",
                "UV_EXTRA_INDEX_URL", "GOPROXY")  # fmt: skip


def found(session: Session) -> dict[str, tuple[str, ...]]:
    """The cached hosts, by preset."""
    cached = _load(session.home / _CACHE)
    return {name: tuple(entry["rules"]) for name, entry in cached.items()}


def refresh(session: Session, presets: Iterable[str]) -> None:
    """Asks the tools of these presets again if they or their configuration have changed."""
    wanted = [name for name in presets if name in FOUND]
    if not wanted:
        return
    path = session.home / _CACHE
    cached = _load(path)
    stamps = {name: _stamp(name, session.owner) for name in wanted}
    stale = [name for name in wanted if cached.get(name, {}).get("stamp") != stamps[name]]
    if not stale:
        return
    for name in stale:
        rules = sorted(set(_ASK[name](session.owner)))
        cached[name] = {"stamp": stamps[name], "rules": rules}
    files.write_atomic(path, json.dumps(cached).encode(), durable=False)


def _load(path: Path) -> dict[str, dict[str, list[str]]]:
    """An unreadable cache is an empty one."""
    try:
        loaded = json.loads(files.read_regular(path, limit_bytes=_MAX_BYTES) or b"{}")
        return {
            name: {"stamp": list(entry["stamp"]), "rules": list(entry["rules"])}
            for name, entry in loaded.items()
        }
    except (AtollError, ValueError, TypeError, AttributeError, KeyError):
        return {}


def _stamp(name: str, owner: Mapping[str, str]) -> list[str]:
    """Changes when a tool or its settings do."""
    home = owner.get("HOME", "")
    places = [place for tool in _TOOLS[name] if (place := _find(tool, owner))]
    places += [place.replace("~", home) for place in _SETTINGS[name]]
    environment = [owner.get(key, "") for key in _ENVIRONMENT]
    return [*environment, *(f"{place} {_changed_at(place)}" for place in places)]


def _changed_at(place: str) -> int:
    try:
        return os.stat(place).st_mtime_ns
    except OSError:
        return 0


def _ask_python(owner: Mapping[str, str]) -> Iterator[str]:
    if python := _find("python3", owner):
        configured = _output([python, "-m", "pip", "config", "list"], owner)
        yield from _hosts("\n".join(_PIP_INDEX.findall(configured)))
        if not _PIP_DEFAULT_INDEX.search(configured):
            yield from _hosts(_output([python, "-c", _PIP_DEFAULT], owner))
    yield from _hosts_in_files("python", owner)


def _ask_node(owner: Mapping[str, str]) -> Iterator[str]:
    """The registry, and those of single scopes (`@scope:registry`)."""
    npm = _find("npm", owner)
    if npm is None:
        return
    settings = _parse_object(_output([npm, "config", "list", "--json"], owner))
    named = [value for key, value in settings.items() if key.endswith(":registry")]
    default = settings.get("registry")
    if default is None:
        default = _output([npm, "config", "get", "registry"], owner)
    yield from _hosts("\n".join(str(url) for url in (default, *named)))


def _parse_object(text: str) -> dict[str, object]:
    """Empty if the text is not a JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ask_rust(owner: Mapping[str, str]) -> Iterator[str]:
    if cargo := _find("cargo", owner):
        for host in _CARGO_DEFAULT.findall(_output([cargo, "search", "--help"], owner)):
            # The index and the packages are on hosts below it.
            yield from (host, f"*.{host}")
    yield from _hosts_in_files("rust", owner)


def _ask_go(owner: Mapping[str, str]) -> Iterator[str]:
    if go := _find("go", owner):
        output = _output([go, "env", "GOPROXY", "GOSUMDB"], owner)
        yield from _hosts(output)
        yield from (
            word for word in output.split() if re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", word)
        )


def _ask_ruby(owner: Mapping[str, str]) -> Iterator[str]:
    if gem := _find("gem", owner):
        yield from _hosts(_output([gem, "sources", "--list"], owner))


def _ask_debian(owner: Mapping[str, str]) -> Iterator[str]:
    yield from _hosts_in_files("debian", owner)
    for path in sorted(Path("/etc/apt/sources.list.d").glob("*")):
        yield from _hosts(_read(path))


_ASK: dict[str, Callable[[Mapping[str, str]], Iterator[str]]] = {
    "python": _ask_python,
    "node": _ask_node,
    "rust": _ask_rust,
    "go": _ask_go,
    "ruby": _ask_ruby,
    "debian": _ask_debian,
}
_TOOLS = {
    "python": ("python3", "uv"), "node": ("npm",), "rust": ("cargo",), "go": ("go",),
    "ruby": ("gem",), "debian": (),
}  # fmt: skip
_SETTINGS = {
    "python": ("~/.config/uv/uv.toml", "/etc/uv/uv.toml", "~/.config/pip/pip.conf",
               "~/.pip/pip.conf", "/etc/pip.conf"),
    "node": ("~/.npmrc", "/etc/npmrc"),
    "rust": ("~/.cargo/config.toml", "~/.cargo/config", "~/.rustup/toolchains"),
    "go": ("~/.config/go/env",),
    "ruby": ("~/.gemrc", "/etc/gemrc"),
    "debian": ("/etc/apt/sources.list", "/etc/apt/sources.list.d"),
}  # fmt: skip


def _hosts_in_files(name: str, owner: Mapping[str, str]) -> Iterator[str]:
    home = owner.get("HOME", "")
    for place in _SETTINGS[name]:
        yield from _hosts(_read(Path(place.replace("~", home))))
    if name == "python":
        yield from _hosts(" ".join(owner.get(key, "") for key in _ENVIRONMENT))


def _read(path: Path) -> str:
    try:
        return (files.read_regular(path, limit_bytes=_MAX_BYTES) or b"").decode(errors="replace")
    except (AtollError, OSError):
        return ""


def _hosts(text: str) -> Iterator[str]:
    """The hosts of all URLs in a text, without comments, that a rule can name."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith(("#", ";", "//")))
    for host in _URL.findall("\n".join(lines)):
        name = host.lower().strip(".")
        if "." in name and not name.endswith(".localhost"):
            yield name


def _find(tool: str, owner: Mapping[str, str]) -> str | None:
    """The tool in the owner's PATH, unless it is inside of a project."""
    return programs.find_program(tool, path=owner.get("PATH", ""))


def _output(argv: list[str], owner: Mapping[str, str]) -> str:
    # Many of these tools are scripts, whose interpreters are on the owner's PATH, too.
    env = {"PATH": programs.trusted_path(owner.get("PATH", ""))}
    if home := owner.get("HOME"):
        env["HOME"] = home  # where their settings are
    try:
        return run(argv, cwd="/", env=env, limit_bytes=_MAX_BYTES, timeout_s=_TIMEOUT_S).text
    except AtollError:
        return ""
