"""Where the packages of a manifest or lock file come from: hosts, repositories and paths.

The formats differ and change; all name their sources as URLs, as `git@host:path`, as a shorthand or
as a path. These are searched for in the text, in linear time, so that a damaged or unknown file
yields too many rather than too few.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from atoll.engine.change import dependency_files
from atoll.engine.change.parsing import Pairs, parse_json, parse_toml

SOURCE_BYTES = 32 << 20
"""The limit for a lock file."""
GO_FILES = frozenset({"go.mod", "go.sum", "go.work", "go.work.sum"})
_JSON = frozenset({
    "package.json", "package-lock.json", "npm-shrinkwrap.json", "composer.json", "composer.lock",
    "pipfile.lock", "flake.lock", "deno.lock", "package.resolved", "packages.lock.json",
})  # fmt: skip
_TOML = frozenset({"pyproject.toml", "cargo.toml"})
_DESCRIBING = frozenset({
    "homepage", "bugs", "repository", "funding", "author", "authors", "contributors",
    "maintainers", "support", "description", "license", "licenses", "keywords", "readme", "urls",
    "documentation", "classifiers", "$schema", "notification-url",
})  # fmt: skip
_ON_GITHUB = re.compile(r"[\w-]+/[\w.-]+(?:#.*)?")
"""How `package.json` may name a repository."""
_NOT_HOSTS = frozenset({b"npm", b"workspace", b"patch", b"virtual", b"link", b"file", b"portal"})
"""Words that some lock files put between `@` and `:`."""

_URL = re.compile(
    rb"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,20})://([^\s\"'<>`|,;\\\]\[)(}{]{1,2000})", re.IGNORECASE
)
_WEB = re.compile(
    rb"(?<![a-z0-9])(?:https?|ftp):[/\\\t\r\n]{0,8}([^\s\"'<>`|/\\?#]{1,500})", re.IGNORECASE
)
"""A host as npm reads it: after any slashes or none, and after what is before the `@`."""
_JOINED = re.compile(rb"\\\r?\n")
"""In requirements, a line that goes on."""
_LINE_OPTION = re.compile(rb"^\s{0,40}(-[^\n#]{1,500})", re.MULTILINE)
_LINE_PATH = re.compile(
    rb"^\s{0,40}((?:[./~][^\s#;]{0,500}|[\w.-]{1,200}[/\\][^\s#;]{0,500}"
    rb"|[\w.+-]{1,200}\.(?:whl|zip|tar\.gz|tgz|tar\.bz2|tar\.xz)))",
    re.MULTILINE | re.IGNORECASE,
)
_SCP = re.compile(rb"(?<![\w.-])[\w.-]{1,64}@([\w.-]{1,200}):([\w~][^\s\"'<>,;\]\[)(}{]{0,500})")
_SHORT = re.compile(
    rb"(?<![\w.+-])(github|gitlab|bitbucket|gist|git|file|link|portal|patch|exec|npm|path)"
    rb":(?!//)([\w.~@/-][^\s\"'<>,;\]\[)(}{]{0,500})",
    re.IGNORECASE,
)
_PATH = re.compile(
    rb"(?<![\w-])(path|editable|directory|git|url|registry|index|source)\"?\s{0,8}[=:]\s{0,8}\"?"
    rb"([./~][^\s\"',}\]]{0,500})"
)
_OPTION = re.compile(
    rb"^\s{0,40}(-i|-f|-e|--index-url|--extra-index-url|--find-links|--editable|--trusted-host"
    rb"|--no-index|-r|-c|--requirement|--constraint)(?:\s{1,40}|=|$)([^\s#]{0,500})",
    re.MULTILINE,
)
_REPLACE = re.compile(rb"=>\s{0,40}([^\s]{1,500})")
_SUM = re.compile(rb"^([a-z0-9.-]{1,200})/[^\s]{1,500} v", re.MULTILINE)
_ESCAPE = re.compile(rb"\\(?:(/)|u00([0-9a-fA-F]{2})|x([0-9a-fA-F]{2})|U000000([0-9a-fA-F]{2}))")
_FORGES = (b"git", b"bitbucket", b"codeberg", b"sourceforge", b"sr.ht", b"amazonaws", b"blob.",
           b"storage.", b"raw.", b"gitea", b"forgejo", b"huggingface")  # fmt: skip
"""Parts of the names of hosts at which anybody can have a place: their paths count, too."""
_ARCHIVE = re.compile(
    rb"[^/]\.(tgz|tar\.(gz|bz2|xz|zst)|whl|zip|crate|gem|jar|egg|conda|nupkg|rpm|deb)$",
    re.IGNORECASE,
)


def find_sources(path: str, content: bytes) -> set[str]:
    """The sources that a file names, in a normal form of unbounded length."""
    name = path.rpartition("/")[2].lower()
    text = _structured_text(name, content)
    if text is None:
        text = _ESCAPE.sub(_unescaped, content) if b"\\" in content else content
    found = set(_sources(text, is_go=name in GO_FILES))
    if name.endswith((".txt", ".in")):
        lines = _JOINED.sub(b"", content.removeprefix(codecs.BOM_UTF8))
        found |= set(_sources(lines, is_go=False)) | set(_requirements(lines))
    return {source.decode("utf-8", "replace") for source in found}


def _requirements(text: bytes) -> Iterator[bytes]:
    """The options and paths in a file of pip, which takes abbreviated options, and `-iURL`."""
    for option in _LINE_OPTION.findall(text):
        yield b" ".join(option.split())
    yield from _LINE_PATH.findall(text)


def _structured_text(name: str, content: bytes) -> bytes | None:
    """The values of a JSON or TOML file, one per line, without those that only describe a package;
    None if it is of another format, or damaged.
    """
    found: object = None
    if name in _JSON:
        found = parse_json(content, limit_bytes=SOURCE_BYTES, as_pairs=True)
    elif name in _TOML:
        found = parse_toml(content)
    if found is None:
        return None
    return "\n".join(_values(found, is_lock=dependency_files.is_lock(name))).encode(
        "utf-8", "replace"
    )


def _values(top: object, *, is_lock: bool) -> Iterator[str]:
    ahead: list[tuple[tuple[str, ...], object]] = [((), top)]
    while ahead:
        path, value = ahead.pop()
        if isinstance(value, dict):
            value = Pairs(value.items())
        if isinstance(value, Pairs):
            skipped = _descriptions(path, value, is_lock=is_lock)
            ahead += [((*path, key)[-4:], below) for key, below in value if key not in skipped]
            # Dependencies may be named by the key alone, as in a lock file.
            yield from (key for key, _ in value)
        elif isinstance(value, list):
            ahead += [(path, below) for below in value]
        elif isinstance(value, str):
            yield f'{path[-1] if path else ""} = "{value}"'
            if path and path[0].endswith("ependencies") and _ON_GITHUB.fullmatch(value.strip()):
                yield f"github:{value.strip()}"
            if not is_lock and len(path) == 2 and _is_elsewhere(path, value):
                yield f"path:{value.strip()}"


def _is_elsewhere(path: tuple[str, ...], value: str) -> bool:
    """Whether a dependency of `package.json` is no version of a registry."""
    is_version = not any(c in value for c in "/:\\") or value.startswith(("npm:", "workspace:"))
    return path[0].endswith("ependencies") and not is_version


def _descriptions(path: tuple[str, ...], pairs: Pairs, *, is_lock: bool) -> frozenset[str]:
    """The keys of a table whose values only describe a package."""
    if path in {(), ("project",), ("tool", "poetry"), ("package",)}:
        return _DESCRIBING
    own = {key for key, value in pairs if key in {"version", "name"} and isinstance(value, str)}
    if not is_lock or "version" not in own:
        # Any key can be the name of a dependency here.
        return frozenset()
    return _DESCRIBING if "name" in own else frozenset({"funding"})


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[2] or found[3] or found[4]
    return b"/" if code is None else bytes([int(code, 16)])


def _sources(text: bytes, *, is_go: bool) -> Iterator[bytes]:
    for scheme, rest in _URL.findall(text):
        found = _place(scheme.lower(), rest)
        if found is not None:
            yield found
    for authority in _WEB.findall(text):
        yield b"host " + authority.rpartition(b"@")[2].lower()
    for host, path in _SCP.findall(text):
        if host.lower() not in _NOT_HOSTS:
            yield host.lower() + b"/" + _two(path)
    for scheme, path in _SHORT.findall(text):
        if scheme.lower() != b"npm" and not path.isdigit():
            yield scheme.lower() + b":" + _bare(path)
    yield from (path for _, path in _PATH.findall(text))
    yield from (option + b" " + value for option, value in _OPTION.findall(text))
    if is_go:
        yield from (b"=> " + target for target in _REPLACE.findall(text))
        yield from _SUM.findall(text)


def _place(scheme: bytes, rest: bytes) -> bytes | None:
    """A host for a registry; the host and repository where anybody can have one."""
    if scheme.endswith(b"file"):
        return b"file:" + rest
    authority, _, path = rest.partition(b"/")
    host = authority.rpartition(b"@")[2].lower()
    path = _bare(path)
    if not host:
        return None
    if any(part in host for part in _FORGES) or b"git" in scheme or path.endswith(b".git"):
        return host + b"/" + _two(path)
    # Not encrypted, and so no longer the same place.
    prefix = b"http://" if scheme == b"http" else b""
    return prefix + host if _ARCHIVE.search(path) else prefix + host + b"/" + path


def _bare(path: bytes) -> bytes:
    return re.split(rb"[?#]", path, maxsplit=1)[0].strip(b"/")


def _two(path: bytes) -> bytes:
    """The owner and name of a repository."""
    parts = [part for part in _bare(path).split(b"/") if part]
    if parts[:1] == [b"repos"]:
        parts = parts[1:]
    return b"/".join(parts[:2]).removesuffix(b".git")
