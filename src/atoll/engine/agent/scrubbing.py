"""Removes what looks like a credential from texts and settings that are copied into a capsule.

Pure. It errs on the side of removing: what is missing inside can be granted as a secret.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

REMOVED = "[removed]"
_DEPTH = 24
_NAME = re.compile(
    r"(?i)pass(?:word|wd|phrase)?$|secret|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credential|authorization|bearer|cookie|session[_-]?id"
)
_DROPPED = frozenset({"env", "headers", "http_headers", "env_http_headers", "oauth", "auth"})
"""Tables that hold credentials in the settings of MCP servers."""
_FLAG = re.compile(r"--?[\w-]+")
_TOKENS = re.compile(
    r"sk-[A-Za-z0-9_-]{16,}"
    r"|(?:gh[pousr]|glpat|github_pat|xox[abeoprs]|npm|pypi|hf|rk|pk|sk|whsec|shpat|dop_v1|AIza)"
    r"[-_][A-Za-z0-9_-]{12,}"
    r"|AIza[A-Za-z0-9_-]{30,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    r"|(?i:bearer|basic)\s+[A-Za-z0-9._~+/=-]{16,}"
    r"|-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY-----(?:(?!-----END)[\s\S]){0,20000}(?:-----END[^\n]*)?"
)
_URL_USER = re.compile(r"(?<=://)[^/\s:@]{0,99}:?[^/\s@]{1,255}@")
_URL_QUERY = re.compile(
    r"([?&](?:key|api_?key|token|access_token|auth|secret|sig|signature)=)[^&\s\"'#]+",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(
    r"(?im)((?:pass(?:word|wd|phrase)|secret|token|api[_-]?key|access[_-]?key|private[_-]?key)"
    r"\w{0,40}[\"']?[ \t]{0,20}[:=][ \t]{0,20}[\"']?)(?=[^\s\"'${}<%\[\],;]*\d)"
    r"[^\s\"'${}<%\[\],;]{8,}"
)
"""A value of some length with a digit: `token: see the vault` stays."""
_RANDOM = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])[A-Za-z0-9_+/=-]{32,}")


def scrub_text(text: str) -> str:
    """A text, such as a memory file, with what looks like a credential replaced."""
    found = _TOKENS.sub(REMOVED, text)
    found = _URL_QUERY.sub(rf"\1{REMOVED}", _URL_USER.sub("", found))
    return _ASSIGNED.sub(rf"\1{REMOVED}", found)


def scrub_settings(value: Any, *, only: tuple[str, ...] = ()) -> Any:
    """Settings without credentials: tables and keys named like one, and values that look so."""
    if only and isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if key in only}
    return _scrub(value, 0)


def _scrub(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        return None
    if isinstance(value, Mapping):
        return {
            key: _scrub(inner, depth + 1)
            for key, inner in value.items()
            if not _is_secret_key(str(key), inner)
        }
    if isinstance(value, list):
        return _scrub_list(value, depth)
    if isinstance(value, str):
        return "" if _RANDOM.fullmatch(value) else scrub_text(value)
    return value


def _is_secret_key(key: str, value: object) -> bool:
    if key.lower() in _DROPPED:
        return not isinstance(value, bool)
    # A number such as `maxTokens` is a setting.
    return _NAME.search(key) is not None and isinstance(value, (str, list, dict))


def _scrub_list(items: list[Any], depth: int) -> list[Any]:
    """A list may be a command line: the value after `--api-key` goes as well."""
    found: list[Any] = []
    is_value = False
    for item in items:
        if is_value and isinstance(item, str) and not item.startswith("-"):
            found.append("")
        elif isinstance(item, str) and (match := _FLAG.match(item)) and _NAME.search(match[0]):
            found.append(item.partition("=")[0] + ("=" if "=" in item else ""))
        else:
            found.append(_scrub(item, depth + 1))
        is_value = isinstance(item, str) and (
            _FLAG.fullmatch(item) is not None and _NAME.search(item) is not None
        )
    return found


def scrub_file(name: str, content: bytes, *, only: tuple[str, ...] = ()) -> bytes | None:
    """A file of the owner's as a capsule may have it; None for one that cannot be understood.

    JSON and TOML are read and written anew; other text is searched.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    try:
        if name.endswith(".json"):
            kept = scrub_settings(json.loads(text), only=only)
            return (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode()
        if name.endswith(".toml"):
            return render_toml(scrub_settings(tomllib.loads(text), only=only)).encode()
    except (ValueError, RecursionError):
        return None
    return None if only else scrub_text(text).encode()


def render_toml(table: Mapping[str, Any]) -> str:
    """A table of TOML as text. Keys and strings are written as JSON strings, which TOML reads."""
    return "".join(_toml_lines(table, ()))


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    plain = {k: v for k, v in table.items() if not isinstance(v, Mapping) and v is not None}
    tables = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    lines = [f"[{'.'.join(map(_toml_string, path))}]\n"] if path and (plain or not tables) else []
    lines += [f"{_toml_string(key)} = {_toml_value(value)}\n" for key, value in plain.items()]
    for key, inner in tables.items():
        lines += _toml_lines(inner, (*path, key))
    return lines


def _toml_string(text: str) -> str:
    # JSON escapes what TOML needs escaped, too, but for DEL and surrogates.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value if item is not None) + "]"
    if isinstance(value, Mapping):
        inner = (f"{_toml_string(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None)
        return "{ " + ", ".join(inner) + " }"
    # Numbers and dates.
    return str(value)
