"""Removes what looks like a credential from settings and other files for a capsule.

Pure. It errs on the side of removing: what is missing inside can be granted as a secret. Of the
settings of MCP servers, what can hold a credential is dropped by its place: tables of variables and
headers, values of `NAME=value` words, the queries of URLs.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from atoll.engine.agent.text_scrubbing import (
    REMOVED,
    Kind,
    is_placeholder,
    is_random,
    kind_of,
    scrub_text,
)

_DEPTH = 24
_TABLE = re.compile(
    r"(?:.{0,60}[a-z0-9_.-])?(?:env|envs|environment|environments|header|headers|cookies?|oauth|auth"
    r"|env_?vars?|env_?variables?|variables|credentials)",
    re.IGNORECASE,
)
"""The ends of names of tables that hold credentials in the settings of MCP servers."""
_FIELD = frozenset({"pat", "sig", "signature", "jwt", "pin", "tokens", "secrets"})
_PART = re.compile(r"[^A-Za-z0-9+_=-]")
_URL = re.compile(r"(?P<start>[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s/?#\"'<>`]{0,300})"
                  r"(?P<rest>[^\s\"'<>`]*)")  # fmt: skip
_HASHED = re.compile(
    r"/nix/store/.{1,4000}|(?:~|\.{1,2})?(?:/(?:[\w.@-]{1,19}|[a-z0-9.@_-]{1,80})){2,60}/?"
    r"|[a-z0-9.:/_-]{1,400}@sha256:[0-9a-f]{64}"
)
_FLAG = re.compile(r"--?[A-Za-z][\w-]{0,80}")
_PLAIN_FLAG = re.compile(r"--?[a-z][a-z-]{0,40}(?:=.{0,4000})?")
_VARIABLE = re.compile(
    r"(?P<before>(?:[A-Za-z]{1,20}\()?[\"'(]?)(?P<name>[A-Z_][A-Z0-9_]{0,80})=(?P<value>.{1,8000})"
)
_CLOSING = re.compile(r"(?::\*)?[)\"']{1,3}\Z")
"""The end of a permission such as `Bash(make:*)`, or of a quoted text."""
_HEADER_FLAGS = frozenset({"-H", "--header", "--headers"})
_USER_FLAGS = frozenset({"-u", "-U", "--user", "--proxy-user"})
_ORDINARY = re.compile(r"[0-9]{1,5}(?::[0-9]{1,5})?|[./~].{0,4000}|[a-z]{1,40}")
"""A port, a path or a word after `-p`."""


def scrub_settings(value: Any, *, only: tuple[str, ...] = ()) -> Any:
    """Settings without credentials: tables and keys named like one, and values that look so."""
    if only and isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if key in only}
    return _scrub(value, 0)


def _scrub(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        return None
    if isinstance(value, Mapping):
        return _scrub_table(value, depth)
    if isinstance(value, list):
        return _scrub_list(value, depth)
    return _scrub_string(value) if isinstance(value, str) else value


def _scrub_table(table: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = str(key)
        is_pair = name.lower() == "value" and not {"name", "key"}.isdisjoint(table)
        if is_pair and isinstance(value, (str, int)) and not isinstance(value, bool):
            # An entry of a list of variables or headers.
            found[name] = ""
        elif not _is_secret_key(name, value):
            found[_scrub_string(name)] = _scrub(value, depth + 1)
    return found


def _is_secret_key(key: str, value: object) -> bool:
    if isinstance(value, bool) or value is None:
        return False
    kind = kind_of(key)
    if not isinstance(value, (str, list, Mapping)):
        # A number such as `maxTokens` is a setting.
        return kind is Kind.PASSWORD or key.lower() in {"pin", "secret"}
    if _TABLE.fullmatch(key) or kind >= Kind.MEDIUM or key.lower() in _FIELD:
        # The working directory has the name of a password.
        return not (key.lower() == "pwd" and isinstance(value, str) and value[:1] in "/~.")
    return kind is Kind.WEAK and isinstance(value, str) and _may_be_secret(value)


def _scrub_string(text: str) -> str:
    if _may_be_secret(text):
        return ""
    found = _URL.sub(_scrub_url, scrub_text(text))
    if "\n" in found:
        return found
    # A command line, or a permission with one.
    parts = re.split(r"(\s+)", found)
    parts[::2] = _scrub_words(parts[::2], REMOVED)
    return "".join(parts)


def _may_be_secret(word: str) -> bool:
    """Whether a word, or a part of it, looks generated. Paths and images have hashes, too."""
    if re.search(r"\s|://", word) or _HASHED.fullmatch(word):
        return False
    return any(map(is_random, (word, *_PART.split(word))))


def _scrub_url(match: re.Match[str]) -> str:
    """Keeps the scheme, the host and those parts of the path that do not look generated."""
    rest, mark, tail = match["rest"].partition("#")
    path, question, query = rest.partition("?")
    kept = "/".join(REMOVED if _is_secret_part(part) else part for part in path.split("/"))
    names = [pair.partition("=")[0] for pair in query.split("&")]
    values = "&".join(f"{'' if is_random(name) else name}=" for name in names if name)
    end = "" if not tail or "=" in tail or is_random(tail) else mark + tail
    return f"{match['start']}{kept}{question}{values}{end}"


def _is_secret_part(part: str) -> bool:
    is_mixture = re.search("[0-9]", part) is not None and re.search("[A-Za-z]", part) is not None
    return _may_be_secret(part) or (is_mixture and len(part) >= 16 and part.isalnum())


def _scrub_list(items: list[Any], depth: int) -> list[Any]:
    """A list may be a command line: the value after `--api-key` goes as well."""
    words = [
        item if isinstance(item, str) and not re.search(r"\s", item) else None for item in items
    ]
    flags = [item if isinstance(item, str) else "" for item in items]
    kept = _scrub_words(flags, "")
    return [
        (_scrub_string(after) if word is None or after == before else after)
        if isinstance(item, str)
        else _scrub(item, depth + 1)
        for item, word, before, after in zip(items, words, flags, kept, strict=True)
    ]


def _scrub_words(words: list[str], by: str) -> list[str]:
    """The words of a command line, with the values that may be credentials replaced."""
    found: list[str] = []
    flag = ""
    for word in words:
        closing = _CLOSING.search(word) if by else None
        core, end = (word, "") if closing is None else (word[: closing.start()], closing[0])
        found.append((_after_flag(flag, core, by) if flag else _scrub_word(core, by)) + end)
        bare = word.lstrip("\"'(")
        flag = bare if _FLAG.fullmatch(bare) else ""
    return found


def _after_flag(flag: str, word: str, by: str) -> str:
    """A word that may be the value of a flag."""
    if REMOVED in word or is_placeholder(word):
        return word
    if flag in _HEADER_FLAGS:
        name, colon, value = word.partition(":")
        return f"{name}{colon} {by}".rstrip() if colon and value else word
    if flag in _USER_FLAGS and ":" in word and not re.fullmatch(r"[0-9]+:[0-9]+", word):
        return f"{word.partition(':')[0]}:{by}"
    if _is_secret_flag(flag):
        # Another flag, unless it looks like no name.
        return _scrub_word(word, by) if _PLAIN_FLAG.fullmatch(word) else by
    if flag in {"-p", "-P"} and not _ORDINARY.fullmatch(word) and not word.startswith("-"):
        return by if re.search("[0-9]", word) else word
    return _scrub_word(word, by)


def _is_secret_flag(flag: str) -> bool:
    return kind_of(flag) >= Kind.MEDIUM or flag.lstrip("-").lower() in {*_FIELD, "key", "auth"}


def _scrub_word(word: str, by: str) -> str:
    if word.startswith(("http://", "https://")) or REMOVED in word or is_placeholder(word):
        return word
    flag, equals, value = word.partition("=")
    if equals and value and _FLAG.fullmatch(flag):
        return f"{flag}={_after_flag(flag, value, by)}"
    match = _VARIABLE.fullmatch(word)
    # A permission such as `Bash(A=b make)` is more than a value.
    if match and not (match["before"] and re.search(r"\s", word)):
        kept = match["value"] if is_placeholder(match["value"]) else by
        return f"{match['before']}{match['name']}={kept}"
    if equals and value and flag.isidentifier() and kind_of(flag) >= Kind.MEDIUM:
        return f"{flag}={by}"
    return by if _may_be_secret(word) else word


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
