"""Rules for HTTP requests: `METHOD /path*`, in allow and deny lists of a brokered secret.

A path is compared in canonical form, percent-decoded and without its query. A path that a server
could read differently, such as one with `..`, `//` or an encoded slash, has no canonical form and
is refused, never repaired. So is one with what a server might take for these: dots with white space
beside them, and characters that Unicode takes for a dot or a slash.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

MOST_BYTES = 8192
"""Of a request target."""
ANY_METHOD = "*"
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}|\*", re.ASCII)
_RULE_PATH = re.compile(r"/[!-~]*", re.ASCII)
_TARGET = re.compile(r"/[!-~]*", re.ASCII)
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)
_UNSEEN = frozenset(("Cc", "Cf", "Cn", "Mn", "Zl", "Zp", "Zs"))
_DOTS = ".\u3002"
"""In the NFKC form, which has a dot for most characters that are like one."""
_REPOSITORY = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}){1,8}", re.ASCII
)


class RequestRule(NamedTuple):
    """One rule. In its path, `*` stands for any characters."""

    method: str
    """Upper case, or `*` for every method."""
    path: str

    def matches(self, method: str, path: str) -> bool:
        """`path` is in canonical form."""
        return self.method in (ANY_METHOD, method) and _matches(self.path, path)


def _matches(pattern: str, path: str) -> bool:
    """In time linear in the length of the path, which is hostile: no regular expression."""
    first, *rest = pattern.split("*")
    if not rest:
        return path == first
    if not path.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(path) - at >= len(rest[-1]) and path.endswith(rest[-1])


def parse_rule(text: str) -> RequestRule:
    """Raises ValueError with the end of a sentence about the text."""
    method, space, path = text.strip().partition(" ")
    path = path.strip()
    if not space or not _METHOD.fullmatch(method.upper()) or not _RULE_PATH.fullmatch(path):
        raise ValueError("is not `METHOD /path*`, such as `POST /v1/*` or `* /v1/models`")
    if set("?#%") & set(path):
        raise ValueError("must have a plain path: no query, fragment or percent escape")
    try:
        return RequestRule(method.upper(), canonical_path(path))
    except ValueError as error:
        raise ValueError(f"has a path that {error}") from None


def require_rule(text: str) -> str:
    """The rule in its usual form. Raises ValueError as `parse_rule`."""
    rule = parse_rule(text)
    return f"{rule.method} {rule.path}"


def parse_repository(text: str) -> str:
    """Returns `owner/name` without `.git`; nested groups are allowed. Raises ValueError."""
    name = text.removesuffix(".git")
    if not _REPOSITORY.fullmatch(name) or ".." in name:
        raise ValueError("is not `owner/name`")
    return name


def split_target(target: str) -> tuple[str, str]:
    """The path and the query, with its `?`, of a request target in origin form.

    Raises ValueError for any other form, for fragments, spaces, control and non-ASCII characters.
    """
    if len(target) > MOST_BYTES:
        raise ValueError("is too long")
    if not _TARGET.fullmatch(target):
        raise ValueError("does not begin with `/`, or has characters that are not printable ASCII")
    if "#" in target:
        raise ValueError("has a fragment")
    path, mark, query = target.partition("?")
    return path, mark + query


def canonical_path(path: str) -> str:
    """The percent-decoded path. Raises ValueError with the end of a sentence about the path."""
    if "\\" in path or "//" in path:
        raise ValueError("has a backslash or `//`")
    if _ESCAPE.search(path):
        raise ValueError("has an invalid percent escape")
    try:
        decoded = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if decoded.count("/") != path.count("/") or "\\" in decoded:
        raise ValueError("has an encoded slash or backslash")
    if "%" in decoded:
        # A server that decodes twice would see another path.
        raise ValueError("has an encoded percent sign")
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in decoded):
        raise ValueError("has a control character")
    usual = unicodedata.normalize("NFKC", decoded)
    if usual.count("/") != decoded.count("/") or "\\" in usual:
        raise ValueError("has a character that stands for a slash or backslash")
    if any(map(_is_dots, without_parameters(usual).split("/"))):
        raise ValueError("has a segment `.` or `..`, or one that a server could take for it")
    return decoded


def _is_dots(segment: str) -> bool:
    """Whether there is nothing but dots, and what is not seen."""
    seen = [c for c in segment if not c.isspace() and unicodedata.category(c) not in _UNSEEN]
    return bool(segment) and all(c in _DOTS for c in seen)


def without_parameters(path: str) -> str:
    """A path as servers see it that ignore what follows a semicolon in a segment."""
    return "/".join(segment.partition(";")[0] for segment in path.split("/"))


def find_denial(method: str, path: str, *, allow: Iterable[str], deny: Iterable[str]) -> str | None:
    """Why a request is not allowed: the rule that denies it, or that no rule allows it.

    None when it is allowed. A rule of `deny` wins; without any rule in `allow` the rest is allowed.
    """
    # It is one path for some servers, and another for others.
    forms = (path, without_parameters(path))
    # Most servers ignore a slash at the end.
    shorter = tuple(form.removesuffix("/") for form in forms)
    for text in deny:
        if any(parse_rule(text).matches(method, form) for form in (*forms, *shorter)):
            return f"the rule `{text}` denies it"
    allowing = [parse_rule(text) for text in allow]
    if allowing and not all(any(rule.matches(method, form) for rule in allowing) for form in forms):
        return "no rule allows it"
    return None


_GIT_SERVICES = ("git-upload-pack", "git-receive-pack")


def is_of_repository(method: str, path: str, query: str, repository: str) -> bool:
    """Whether this is a request that git or Git LFS makes for just this repository.

    `path` is in canonical form, `query` as it was sent, with its `?`. Names are compared without
    regard to case, as the known hosts do.
    """
    wanted = f"/{repository}".lower()
    for root in (wanted, f"{wanted}.git"):
        if path.isascii() and path.lower().startswith(f"{root}/"):
            return _is_git_request(method, path[len(root) + 1 :], query)
    return False


def _is_git_request(method: str, rest: str, query: str) -> bool:
    if rest == "info/refs":
        return method == "GET" and query in {f"?service={name}" for name in _GIT_SERVICES}
    if rest in _GIT_SERVICES:
        return method == "POST" and not query
    return rest.startswith("info/lfs/") and method in ("GET", "POST", "PUT")
