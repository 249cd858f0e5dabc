"""Examines a project and drafts its `atoll.toml` from what was found.

What Atoll cannot do yet is drafted as a comment, so that the file contains only what works.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from atoll.drivers.layers.dependency_detection import is_dependency_directory
from atoll.engine.project.ecosystems import Ecosystem, Server, Tree, find_ecosystems
from atoll.model import presets
from atoll.model.names import printable, slug

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_HEADER = "# What Atoll may do with this project; `atoll schema` prints this file's JSON schema."
_PLACES = 6
_SAFE_DIRECTORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_NOTE_LENGTH = 80
_TARGET = re.compile(r"^(test|lint)[ \t]*:(?![=:])", re.MULTILINE)
_TASK_FILES = (("Makefile", "make"), ("GNUmakefile", "make"), ("justfile", "just"))
_COMPOSE_FILES = (
    "compose.yaml",
    "compose.yml",
    "docker-compose.yaml",
    "docker-compose.yml",
)
_IMAGE = re.compile(r"""^[ \t]*image:[ \t]*["']?([\w./-]{1,200})""", re.MULTILINE)
_IMAGE_KINDS = {
    "postgres": "postgres",
    "postgresql": "postgres",
    "postgis": "postgres",
    "pgvector": "postgres",
    "timescaledb": "postgres",
    "redis": "redis",
    "valkey": "redis",
    "mysql": "mariadb",
    "mariadb": "mariadb",
}
_SERVICE_NAMES = {"postgres": "db", "mariadb": "db", "redis": "cache"}
_TOOL_FILES = (
    ("mise", ("mise.toml", ".mise.toml", ".tool-versions")),
    ("nix", ("flake.nix", "shell.nix")),
    ("direnv", (".envrc",)),
)
_DEVCONTAINERS = (".devcontainer/devcontainer.json", ".devcontainer.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a project's files say about how it is built, checked and served."""

    name: str
    """A usable project name; empty when the directory's holds nothing usable."""
    languages: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    """Commands that install what is missing."""
    spare_setup: tuple[str, ...] = ()
    """Commands that install what is in place already, and so in every capsule."""
    checks: tuple[tuple[str, str], ...] = ()
    """Names and shell commands, in the order in which they should run."""
    server: Server | None = None
    services: tuple[str, ...] = ()
    """What could be given to `use`."""
    tools: str | None = None
    installed: tuple[str, ...] = ()
    """Where dependencies are in place: directories of the project or of the owner's home."""
    presets: tuple[str, ...] = presets.ALWAYS
    """The presets that it needs."""
    notes: tuple[str, ...] = ()
    """What was detected and not configured, one line each."""


def detect(root: Path, tracked: Sequence[str]) -> Findings:
    """Reads the tracked files that say how a project works. Broken ones count as empty."""
    tree = Tree(root=root, files=frozenset(tracked))
    found = list(_ecosystems(tree))
    checks = dict(_checks(found))
    for name, run in _task_checks(tree):
        checks.setdefault(name, run)
    container = _devcontainer(tree)
    places = {index: tuple(_installed(root, *one)) for index, one in enumerate(found)}
    needed = [one for index, one in enumerate(found) if not places[index]]
    spare = [one for index, one in enumerate(found) if places[index]]
    return Findings(
        name=slug(root.name),
        languages=tuple(dict.fromkeys(eco.language for _, eco in found)),
        setup=tuple(_setup(needed)),
        spare_setup=tuple(_setup(spare)),
        checks=tuple(checks.items()),
        server=_server(found, container),
        services=tuple(_services(tree)),
        tools=next((use for use, names in _TOOL_FILES if tree.has(*names)), None),
        installed=tuple(dict.fromkeys(path for paths in places.values() for path in paths)),
        presets=presets.proposed(tracked),
        notes=tuple(_notes(tree, container)),
    )


def _ecosystems(tree: Tree) -> Iterator[tuple[str, Ecosystem]]:
    """Those of the root or, if none is found there, of the directories directly below it."""
    here = [("", eco) for eco in find_ecosystems(tree)]
    if here:
        yield from here
        return
    places = ([(part.root.name, eco) for eco in find_ecosystems(part)] for part in _parts(tree))
    for place in islice(filter(None, places), _PLACES):
        yield from place


def _parts(tree: Tree) -> Iterator[Tree]:
    files: dict[str, set[str]] = defaultdict(set)
    for path in tree.files:
        top, slash, rest = path.partition("/")
        if slash:
            files[top].add(rest)
    for top in sorted(files):
        # The name goes into a shell command, and a link could point outside of the project.
        if _SAFE_DIRECTORY.fullmatch(top) and not (tree.root / top).is_symlink():
            yield Tree(root=tree.root / top, files=frozenset(files[top]))


def _inside(place: str, run: str) -> str:
    return f"(cd {place} && {run})" if place else run


def _checks(found: Sequence[tuple[str, Ecosystem]]) -> Iterator[tuple[str, str]]:
    """The first language has the plain names; a later one's carry its place or language."""
    taken: set[str] = set()
    for place, eco in found:
        mark = slug(place or eco.language)
        for check, run in eco.checks.items():
            plain = check not in taken and not place
            name = check if plain else f"{check}-{mark}"[:40].strip("-")
            if name not in taken:
                taken.add(name)
                yield name, _inside(place, run)


def _task_checks(tree: Tree) -> Iterator[tuple[str, str]]:
    for name, tool in _TASK_FILES:
        for target in _TARGET.findall(tree.text(name)):
            yield target, f"{tool} {target}"


def _server(
    found: Sequence[tuple[str, Ecosystem]], container: Mapping[str, object]
) -> Server | None:
    for place, eco in found:
        if eco.server is not None:
            port = eco.server.port or _only_port(container)
            return Server(command=_inside(place, eco.server.command), port=port)
    return None


def _only_port(container: Mapping[str, object]) -> int | None:
    forwarded = container.get("forwardPorts")
    ports = forwarded if isinstance(forwarded, list) else []
    only = ports[0] if len(ports) == 1 else None
    usable = isinstance(only, int) and not isinstance(only, bool) and 1 <= only <= 65_535
    return only if usable else None


def _services(tree: Tree) -> Iterator[str]:
    text = next((text for name in _COMPOSE_FILES if (text := tree.text(name))), "")
    names = (image.rpartition("/")[2] for image in _IMAGE.findall(text))
    yield from dict.fromkeys(_IMAGE_KINDS[name] for name in names if name in _IMAGE_KINDS)


def _setup(found: Sequence[tuple[str, Ecosystem]]) -> Iterator[str]:
    return (_inside(place, run) for place, eco in found for run in eco.setup)


def _installed(root: Path, place: str, eco: Ecosystem) -> Iterator[str]:
    """Where the dependencies of one language are: in the project, else in the owner's store."""
    inner = [f"{place}/{name}" if place else name for name in eco.installed_in]
    found = [path for path in inner if _is_installed(root / path)]
    yield from found or (path for path in eco.stores if os.path.isdir(os.path.expanduser(path)))


def _is_installed(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and is_dependency_directory(str(path))


def _devcontainer(tree: Tree) -> Mapping[str, object]:
    return next((tree.json(name) for name in _DEVCONTAINERS if tree.has(name)), {})


def _notes(tree: Tree, container: Mapping[str, object]) -> Iterator[str]:
    if tree.has(*_COMPOSE_FILES):
        yield "a compose file: its services are not started by Atoll yet"
    command = container.get("postCreateCommand")
    if isinstance(command, str) and command.strip():
        yield f"the devcontainer's postCreateCommand: {_one_line(command)}"
    elif tree.has(*_DEVCONTAINERS):
        yield "a devcontainer: Atoll does not read its image"
    if tree.has(".worktreeinclude"):
        yield ".worktreeinclude: ignored files are carried without it, secrets by `project.carry`"
    if tree.has(".gitmodules"):
        yield "submodules: a new capsule has those that are checked out here"
    if "filter=lfs" in tree.text(".gitattributes"):
        yield "git LFS: a new capsule may hold pointers; add `git lfs pull` to setup"


def _one_line(text: str) -> str:
    line = printable(" ".join(text[:500].split()))
    return line if len(line) <= _NOTE_LENGTH else line[: _NOTE_LENGTH - 3] + "..."


def render_project_file(findings: Findings) -> str:
    """A short `atoll.toml` that holds what was found; the rest is a few commented examples."""
    blocks = [
        [_HEADER],
        _project_block(findings),
        _capsule_block(findings),
        *_service_blocks(findings),
        *(_table(f"checks.{name}", run=run) for name, run in findings.checks),
    ]
    if not findings.checks:
        blocks.append(["# [checks.test]", '# run = "make test"'])
    if findings.notes:
        blocks.append(
            ["# Detected, but not configured:", *(f"# - {note}" for note in findings.notes)]
        )
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _project_block(findings: Findings) -> list[str]:
    lines = ["[project]"]
    if findings.languages:
        lines.append(f"# {', '.join(findings.languages)}")
    if findings.name:
        lines.append(f"name = {_text(findings.name)}")
    lines.append('# base = "main"    # where new capsules start')
    lines.append('# carry = ["**", ".env"]    # what git ignores is carried; secrets only by name')
    return lines


def _capsule_block(findings: Findings) -> list[str]:
    lines = ["[capsule]"]
    if findings.spare_setup:
        where = printable(", ".join(findings.installed))
        lines.append(f"# Not needed while a new capsule finds its dependencies in {where}:")
        lines.append(f"# setup = {_list(findings.spare_setup)}")
    if findings.setup:
        lines.append("# Run once, in order, inside a new capsule.")
        lines += ["setup = [", *(f"    {_text(run)}," for run in findings.setup), "]"]
    elif not findings.spare_setup:
        lines.append('# setup = ["make deps"]    # run once, in order, inside a new capsule')
    lines.append('# env = { LOG_LEVEL = "debug" }')
    lines.append('# limits = { time = "2h" }')
    lines.append("# What its processes may reach, at level `sandbox`:")
    lines.append('# network = "allow"    # or "none", or "open"')
    lines.append(f"# allow = {_list(findings.presets)}")
    if findings.tools:
        lines += ["", f"# later: [tools] use = {_text(findings.tools)}"]
    return lines


def _service_blocks(findings: Findings) -> Iterator[list[str]]:
    server = findings.server
    if server is not None and server.port is not None:
        note = "# Its port is set in ATOLL_PORT_WEB; Atoll does not start the service yet."
        yield [note, *_table("services.web", command=server.command), f"port = {server.port}"]
    elif server is not None:
        lines = [*_table("services.web", command=server.command), "port = 3000"]
        yield [f"# {line}" for line in lines]
    if findings.services:
        uses = [(_SERVICE_NAMES.get(use, use), use) for use in findings.services]
        yield [f"# later: [services.{name}] use = {_text(use)}" for name, use in uses]


def _table(name: str, **values: str) -> list[str]:
    return [f"[{name}]", *(f"{key} = {_text(value)}" for key, value in values.items())]


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(_text(value) for value in values) + "]"


def _text(value: str) -> str:
    """A TOML string: JSON's escapes are all TOML's, once nothing unprintable is left."""
    return json.dumps(printable(value), ensure_ascii=False)
