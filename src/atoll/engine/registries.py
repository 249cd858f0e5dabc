"""Where this machine's own tools get their packages: they are asked once, and it is kept.

Asked again when a tool or its settings have changed. What a project's own files say counts for
nothing here: they came with the project.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from atoll.engine.session import Session
from atoll.host import files, programs
from atoll.host.process import run
from atoll.model.errors import AtollError
from atoll.model.presets import FOUND

_KEPT = "registries.json"
_URL = re.compile(r"https?://(?:[^/\s@\"']*@)?([A-Za-z0-9.-]+)")
_SPARSE = re.compile(rb"sparse\+https://([a-z0-9.-]+)/")
_MOST_BYTES = 1 << 20
_BINARY_BYTES = 256 << 20
_PIP = """
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
settings = Configuration(isolated=False)
settings.load()
given = dict(settings.items())
if not any(key.endswith(".index-url") for key in given):
    print(PyPI.url, "https://" + PyPI.file_storage_domain)
for key, value in given.items():
    if key.endswith("index-url"):
        print(value)
"""
_ENVIRONMENT = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX",
                "UV_EXTRA_INDEX_URL", "GOPROXY")  # fmt: skip


def found(session: Session) -> dict[str, tuple[str, ...]]:
    """What is kept, by preset."""
    kept = _load(session.home / _KEPT)
    return {name: tuple(entry["rules"]) for name, entry in kept.items()}


def look(session: Session, presets: Iterable[str]) -> None:
    """Asks the tools of these presets, unless nothing has changed since they were asked."""
    wanted = [name for name in presets if name in FOUND]
    if not wanted:
        return
    path = session.home / _KEPT
    kept = _load(path)
    stamps = {name: _stamp(name, session.owner) for name in wanted}
    stale = [name for name in wanted if kept.get(name, {}).get("stamp") != stamps[name]]
    if not stale:
        return
    for name in stale:
        rules = sorted(set(_ASK[name](session.owner)))
        kept[name] = {"stamp": stamps[name], "rules": rules}
    files.write_atomic(path, json.dumps(kept).encode(), durable=False)


def _load(path: Path) -> dict[str, dict[str, list[str]]]:
    """What is not as we write it is asked for anew."""
    try:
        loaded = json.loads(files.read_regular(path, limit_bytes=_MOST_BYTES) or b"{}")
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
    told = [owner.get(key, "") for key in _ENVIRONMENT]
    return [*told, *(f"{place} {_changed_at(place)}" for place in places)]


def _changed_at(place: str) -> int:
    try:
        return os.stat(place).st_mtime_ns
    except OSError:
        return 0


def _ask_python(owner: Mapping[str, str]) -> Iterator[str]:
    if python := _find("python3", owner):
        yield from _hosts(_said([python, "-c", _PIP], owner))
    yield from _hosts_in_files("python", owner)


def _ask_node(owner: Mapping[str, str]) -> Iterator[str]:
    if npm := _find("npm", owner):
        yield from _hosts(_said([npm, "config", "get", "registry"], owner))


def _ask_rust(owner: Mapping[str, str]) -> Iterator[str]:
    """Cargo tells nobody where it looks unless told otherwise; its own file does."""
    home = owner.get("RUSTUP_HOME") or f"{owner.get('HOME', '')}/.rustup"
    programs = [*Path(home).glob("toolchains/*/bin/cargo"), Path("/usr/bin/cargo")]
    for program in programs[:4]:
        try:
            content = files.read_regular(program, limit_bytes=_BINARY_BYTES) or b""
        except (AtollError, OSError):
            continue
        for host in set(_SPARSE.findall(content)):
            # The index names another host of the same domain for the packages themselves.
            domain = host.decode().partition(".")[2]
            yield from (domain, f"*.{domain}") if domain.count(".") else (host.decode(),)
    yield from _hosts_in_files("rust", owner)


def _ask_go(owner: Mapping[str, str]) -> Iterator[str]:
    if go := _find("go", owner):
        said = _said([go, "env", "GOPROXY", "GOSUMDB"], owner)
        yield from _hosts(said)
        yield from (
            word for word in said.split() if re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", word)
        )


def _ask_ruby(owner: Mapping[str, str]) -> Iterator[str]:
    if gem := _find("gem", owner):
        yield from _hosts(_said([gem, "sources", "--list"], owner))


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
    "rust": ("~/.cargo/config.toml", "~/.rustup/toolchains"),
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
        return (files.read_regular(path, limit_bytes=_MOST_BYTES) or b"").decode(errors="replace")
    except (AtollError, OSError):
        return ""


def _hosts(text: str) -> Iterator[str]:
    """Those of all addresses in a text that a rule can name."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith(("#", ";", "//")))
    for host in _URL.findall("\n".join(lines)):
        name = host.lower().strip(".")
        if "." in name and not name.endswith(".localhost"):
            yield name


def _find(tool: str, owner: Mapping[str, str]) -> str | None:
    """The tool that the owner would start, unless it lies in a project."""
    return programs.find_program(tool, path=owner.get("PATH", ""))


def _said(argv: list[str], owner: Mapping[str, str]) -> str:
    # Many of these tools are scripts, whose interpreters are on the owner's PATH, too.
    path = programs.trusted_path(owner.get("PATH", ""))
    try:
        return run(argv, cwd="/", env={"PATH": path}, limit_bytes=_MOST_BYTES).text
    except AtollError:
        return ""
