"""Decides by both versions of a file whether its change can run code or widens trust.

The content is an agent's: it is parsed only within bounds, and what cannot be parsed counts as
risky. Every function returns the reason in one line, or an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from atoll.engine.change.dependency_files import is_lock, is_manifest
from atoll.engine.change.parsing import parse_json, parse_toml
from atoll.engine.change.risk_rules import RiskKind
from atoll.engine.change.sources import find_sources
from atoll.model.names import printable

Judge = Callable[[bytes, bytes], str]
"""Gets the old and the new content, empty where there is none."""

_NAMED = 4
"""How many of the found things a reason names."""
_HARMLESS_NODE = frozenset({
    "name", "version", "description", "keywords", "author", "contributors", "maintainers",
    "license", "licenses", "homepage", "bugs", "repository", "funding", "private", "files", "main",
    "module", "browser", "exports", "types", "typings", "sideEffects", "browserslist", "type",
    "dependencies", "devDependencies", "peerDependencies", "peerDependenciesMeta",
    "optionalDependencies", "bundleDependencies", "bundledDependencies", "prettier", "man", "cpu",
    "os",
})  # fmt: skip
"""Fields of `package.json` that start nothing. Dependencies are compared as sources."""
_HARMLESS_PROJECT = frozenset({
    "name", "version", "description", "readme", "requires-python", "license", "license-files",
    "authors", "maintainers", "keywords", "classifiers", "urls", "dependencies",
    "optional-dependencies",
})  # fmt: skip
_HARMLESS_TOOLS = frozenset({
    "ruff", "black", "isort", "flake8", "codespell", "pydocstyle", "pyright", "basedpyright",
    "djlint", "interrogate", "vulture", "bandit", "pycodestyle", "autoflake", "docformatter",
    "typos", "importlinter", "towncrier", "deptry", "numpydoc_validation", "refurb", "yapf",
})  # fmt: skip
"""Tables of `[tool]` that start nothing and load no plugin."""
_HARMLESS_POETRY = frozenset({
    "name", "version", "description", "license", "authors", "maintainers", "readme", "homepage",
    "repository", "documentation", "keywords", "classifiers", "dependencies", "dev-dependencies",
    "group", "extras", "urls", "package-mode",
})  # fmt: skip
_HARMLESS_CARGO = frozenset({
    "name", "version", "edition", "rust-version", "description", "authors", "license",
    "license-file", "readme", "homepage", "repository", "documentation", "keywords", "categories",
    "publish", "exclude", "include",
})  # fmt: skip
_HARMLESS_ATTRIBUTE = re.compile(
    rb"[-!]?(text|crlf|whitespace|linguist-(language|vendored|documentation))(=[\w,-]+)?"
    rb"|eol=(lf|crlf)|text=auto"
)
_MAGIC: dict[bytes, str] = {
    b"\x7fELF": "a program (ELF)",
    b"MZ": "a program (PE)",
    b"\xfe\xed\xfa": "a program (Mach-O)",
    b"\xcf\xfa\xed\xfe": "a program (Mach-O)",
    b"\xce\xfa\xed\xfe": "a program (Mach-O)",
    b"\xca\xfe\xba\xbe": "a program (Java or Mach-O)",
    b"\x00asm": "a program (WebAssembly)",
    b"!<arch>\n": "a library (ar)",
    b"PK\x03\x04": "an archive (zip)",
    b"PK\x05\x06": "an archive (zip)",
    b"\x1f\x8b": "an archive (gzip)",
    b"BZh": "an archive (bzip2)",
    b"\xfd7zXZ\x00": "an archive (xz)",
    b"7z\xbc\xaf\x27\x1c": "an archive (7-Zip)",
    b"\x28\xb5\x2f\xfd": "an archive (zstd)",
    b"Rar!\x1a\x07": "an archive (RAR)",
    b"070701": "an archive (cpio)",
    b"\xed\xab\xee\xdb": "a package (RPM)",
    b"SQLite format 3\x00": "a database (SQLite)",
    b"\x80\x04\x95": "a Python pickle",
}
_TAR = slice(257, 262)


class ContentRule(NamedTuple):
    kind: RiskKind
    judge: Judge


def rules_for(path: str) -> list[ContentRule]:
    """What has to be asked of the content of a file with this path."""
    name = path.rpartition("/")[2].lower()
    found = []
    if name in _BY_NAME:
        found.append(_BY_NAME[name])
    if is_lock(path) or is_manifest(path):
        found.append(ContentRule(RiskKind.SOURCE, partial(_judge_sources, path)))
    return found


def binary_content(content: bytes) -> str:
    """What kind of binary a content is; empty for text."""
    for magic, what in _MAGIC.items():
        if content.startswith(magic) and (magic != b"MZ" or b"\0" in content):
            return f"it is {what}"
    if content[_TAR] == b"ustar":
        return "it is an archive (tar)"
    return "it has NUL bytes" if b"\0" in content else ""


def _judge_attributes(old: bytes, new: bytes) -> str:
    before, after = set(_attributes(old)), set(_attributes(new))
    found = sorted(before ^ after)
    return _named("its attributes {} changed", found)


def _attributes(content: bytes) -> Iterator[str]:
    """The lines that do more than describe line endings."""
    for line in content.split(b"\n"):
        pattern, *attributes = line.split() or [b"#"]
        if pattern.startswith(b"#"):
            continue
        if any(not _HARMLESS_ATTRIBUTE.fullmatch(attribute) for attribute in attributes):
            yield b" ".join(attributes).decode("utf-8", "replace")


def _judge_node(old: bytes, new: bytes) -> str:
    before, after = _json_table(old), _json_table(new)
    if before is None or after is None:
        return "it cannot be parsed"
    fields = [key for key in _changed(before, after) if key not in _HARMLESS_NODE]
    return _named("its fields {} changed", fields)


def _judge_pyproject(old: bytes, new: bytes) -> str:
    before, after = _toml_table(old), _toml_table(new)
    if before is None or after is None:
        return "it cannot be parsed"
    found = []
    for table in _changed(before, after):
        one, other = _table(before, table), _table(after, table)
        if table == "project":
            found += [f"project.{k}" for k in _changed(one, other) if k not in _HARMLESS_PROJECT]
        elif table == "tool":
            found += _changed_tools(one, other)
        elif table != "dependency-groups":
            found.append(table)
    return _named("its tables {} changed", found)


def _changed_tools(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    found = []
    for tool in _changed(before, after):
        if tool == "poetry":
            keys = _changed(_table(before, tool), _table(after, tool))
            found += [f"tool.poetry.{key}" for key in keys if key not in _HARMLESS_POETRY]
        elif tool not in _HARMLESS_TOOLS:
            found.append(f"tool.{tool}")
    return found


def _judge_cargo(old: bytes, new: bytes) -> str:
    before, after = _toml_table(old), _toml_table(new)
    if before is None or after is None:
        return "it cannot be parsed"
    found = []
    for table in _changed(before, after):
        if table == "package":
            keys = _changed(_table(before, table), _table(after, table))
            found += [f"package.{key}" for key in keys if key not in _HARMLESS_CARGO]
        elif table not in {"dependencies", "dev-dependencies", "features", "workspace", "badges"}:
            found.append(table)
    return _named("its tables {} changed", found)


def _judge_composer(old: bytes, new: bytes) -> str:
    before, after = _json_table(old), _json_table(new)
    if before is None or after is None:
        return "it cannot be parsed"
    found = {"scripts", "config", "repositories", "bin", "autoload", "autoload-dev", "extra",
             "scripts-aliases"}  # fmt: skip
    return _named("its fields {} changed", [k for k in _changed(before, after) if k in found])


def _judge_sources(path: str, old: bytes, new: bytes) -> str:
    if is_lock(path) and old and not new:
        return "versions are no longer pinned by it"
    return _named("it names {}", sorted(find_sources(path, new) - find_sources(path, old)))


_BY_NAME: dict[str, ContentRule] = {
    ".gitattributes": ContentRule(RiskKind.GIT_SETTINGS, _judge_attributes),
    "package.json": ContentRule(RiskKind.PACKAGE, _judge_node),
    "composer.json": ContentRule(RiskKind.PACKAGE, _judge_composer),
    "pyproject.toml": ContentRule(RiskKind.BUILD, _judge_pyproject),
    "cargo.toml": ContentRule(RiskKind.BUILD, _judge_cargo),
}


def _named(text: str, found: Iterable[str]) -> str:
    """Empty if nothing was found."""
    names = list(found)
    if not names:
        return ""
    shown = [f"`{printable(name if len(name) <= 80 else name[:79] + '…')}`" for name in names]
    rest = len(shown) - _NAMED
    listed = ", ".join(shown[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    return text.format(listed)


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """The keys whose values differ, in order."""
    keys = sorted(before.keys() | after.keys())
    return [key for key in keys if _text(before.get(key)) != _text(after.get(key))]


def _text(value: object) -> str:
    """Distinguishes `1`, `1.0` and `true`, which Python takes for equal."""
    return repr(value)


def _table(value: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = value.get(key)
    return found if isinstance(found, dict) else {"": found} if found is not None else {}


def _json_table(content: bytes) -> Mapping[str, object] | None:
    if not content:
        return {}
    found = parse_json(content)
    return found if isinstance(found, dict) else None


def _toml_table(content: bytes) -> Mapping[str, object] | None:
    return parse_toml(content) if content else {}
