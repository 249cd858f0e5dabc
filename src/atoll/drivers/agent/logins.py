"""Finds the owner's logins on the host, and makes what a capsule holds instead.

Law: a real value leaves this module in `FoundLogin.values` only, never in a message. What is
written inside is built from the keys that the adapter names; everything else in the owner's file
stays outside, so that a credential of an unknown kind is never copied.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from atoll.drivers.agent import web_tokens
from atoll.drivers.contracts import FoundLogin, HomeFile, InsideLogin
from atoll.host import files, programs
from atoll.model.errors import StateError
from atoll.model.names import printable
from atoll.model.secret import marker_of

if TYPE_CHECKING:
    from atoll.model.adapter import Login

FILE_LIMIT_BYTES: Final = 1 << 20
_VALUE = re.compile(r"[!-~]{1,16384}")
"""What fits in a header: no spaces, no control characters."""
_COMMENT = re.compile(rb"^\s*//.*$", re.MULTILINE)
"""Some programs write comment lines; a JSON text has no line breaks inside of strings."""
_ACCOUNT_LENGTH = 80
_AHEAD_S: Final = 365 * 86_400
"""Further than a capsule lives, and far below what a client's dates can hold."""
_MILLISECONDS_FROM = 1e11
_LARGEST = 1 << 53
_DEAD = "atoll-keeps-this-outside"
_PREFIXES = (
    *("sk-ant-oat01-", "sk-ant-ort01-", "sk-ant-api03-", "sk-ant-", "sk-or-v1-", "sk-proj-"),
    *("sk-svcacct-", "sk-", "AIza", "ya29.", "1//", "github_pat_", "gho_", "ghu_", "ghp_", "ghs_"),
    *("ghr_", "sgamp_user_", "xai-", "gsk_", "rt_", "rt."),
)
"""What vendors begin their tokens with. Nothing else of a value is kept."""

Document = dict[str, object]


def find_login(login: Login, owner: Mapping[str, str]) -> FoundLogin | None:
    """The owner's login as it is now; None if there is none of this kind.

    `owner` is the owner's environment, with the secrets that stand in for variables. Raises
    StateError when there is a login that cannot be used.
    """
    if login.kind == "json":
        return _find_in_file(login, owner)
    value = owner.get(login.variable or "", "").strip()
    if not value:
        return None
    if not _VALUE.fullmatch(value):
        raise StateError(f"`{login.variable}` is not a usable key", hint=login.cure)
    return FoundLogin("", None, is_expired=False, values={"": value}, cure=login.cure)


def inside_login(login: Login, found: FoundLogin, placeholder: str) -> InsideLogin:
    """The variables and files with which the program inside believes that it is logged in."""
    from atoll.model.adapter import filled  # noqa: PLC0415 - pydantic

    key = login.prefix + marker_of(placeholder) if login.kind == "key" else ""
    known = {"key": key}
    env = {name: filled(text, known) for name, text in login.env.items()}
    if login.kind == "key" and login.variable is not None:
        env = {login.variable: key, **env}
    written = [HomeFile(one.path, filled(one.content, known).encode()) for one in login.files]
    if login.kind == "json":
        written.insert(0, _inside_file(login, found, placeholder))
    return InsideLogin({name: text for name, text in env.items() if text}, tuple(written), key)


def _find_in_file(login: Login, owner: Mapping[str, str]) -> FoundLogin | None:
    from atoll.model.adapter import place_on_host  # noqa: PLC0415 - pydantic

    place = place_on_host(login.file or "", owner)
    text = None if place is None else _read(Path(place), login.cure)
    if place is None or text is None:
        return None
    document = _parsed(text, place, login.cure)
    if any(not _value_at(document, key) for key in (*login.required, *login.tokens[:1])):
        return None
    values = {}
    for field, key in zip("abcdefgh", login.tokens, strict=False):
        value = _value_at(document, key)
        if value is None:
            continue
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise _damaged(place, f"`{key}` is not a token", login.cure)
        values[field] = value
    expires_at = _expiry_s(_value_at(document, login.expiry))
    is_renewable = any(_value_at(document, key) for key in login.refreshable)
    return FoundLogin(
        account=_account(document, login),
        expires_at=expires_at,
        is_expired=expires_at is not None and expires_at <= time.time(),
        values=values,
        cure=login.renew if is_renewable and login.renew else login.cure,
        kept=json.dumps(_kept(document, login)),
    )


def _read(place: Path, cure: str) -> bytes | None:
    """The file through all links, if only root and this user decide what it is."""
    try:
        status = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(f"`{place}` cannot be read: {error.strerror}", hint=cure) from error
    if status.st_uid != os.geteuid():
        raise StateError(f"`{place}` is not used as a login: it belongs to another user", hint=cure)
    if not programs.is_trusted(str(place), programs.untrusted_roots()):
        raise StateError(
            f"`{place}` is not used as a login: others can replace it, or it is in a project",
            hint="chmod go-w on it and its directories",
        )
    try:
        return files.read_regular(place.resolve(), limit_bytes=FILE_LIMIT_BYTES)
    except OSError as error:
        raise StateError(f"`{place}` cannot be read: {error.strerror}", hint=cure) from error


def _parsed(text: bytes, place: str, cure: str) -> Document:
    try:
        found = json.loads(_COMMENT.sub(b"", text))
    except (ValueError, RecursionError):
        raise _damaged(place, "it is not valid JSON", cure) from None
    if not isinstance(found, dict):
        raise _damaged(place, "it is not a JSON object", cure)
    return found


def _damaged(place: str, why: str, cure: str) -> StateError:
    return StateError(f"`{place}` is not a usable login: {why}", hint=cure)


def _kept(document: Document, login: Login) -> Document:
    """What the file inside has; tokens stand as null until a placeholder replaces them."""
    kept: Document = {}
    for key in login.tokens:
        if (path := _path_to(document, key)) is not None:
            _put(kept, path, None)
    for key in login.keep:
        if (path := _path_to(document, key)) is not None:
            _put(kept, path, web_tokens.without_credentials(_at(document, path)))
    for key in (*login.unused, *login.refreshable):
        path = _path_to(document, key)
        if path is not None and isinstance(value := _at(document, path), str) and value:
            _put(kept, path, _like(value, _DEAD))
    for key, moment in (
        *((key, time.time()) for key in login.now),
        *((key, time.time() + _AHEAD_S) for key in filter(None, [login.expiry])),
    ):
        path = _path_to(document, key)
        date = None if path is None else _date_like(_at(document, path), moment)
        if path is not None and date is not None:
            _put(kept, path, date)
    return kept


def _inside_file(login: Login, found: FoundLogin, placeholder: str) -> HomeFile:
    from atoll.model.adapter import place_inside  # noqa: PLC0415 - pydantic

    document: Document = json.loads(found.kept or "{}")
    for field, key in zip("abcdefgh", login.tokens, strict=False):
        path = _path_to(document, key)
        if path is not None and field in found.values:
            _put(document, path, _like(found.values[field], marker_of(placeholder, field)))
    place = login.inside or place_inside(login.file or "")
    return HomeFile(place, (json.dumps(document, indent=2) + "\n").encode())


def _like(value: str, mark: str) -> str:
    """A worthless value of the same form: a JWT with its claims, or a token with its prefix."""
    token = web_tokens.find_web_token(value)
    if token is not None:
        return web_tokens.placeholder_token(token, mark, expires_at=int(time.time() + _AHEAD_S))
    return next((prefix for prefix in _PREFIXES if value.startswith(prefix)), "") + mark


def _account(document: Document, login: Login) -> str:
    value = _value_at(document, login.account)
    return printable(value)[:_ACCOUNT_LENGTH] if isinstance(value, str) else ""


def _expiry_s(value: object) -> float | None:
    if isinstance(value, str):
        return _date_s(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # An integer may have thousands of digits.
    if not -_LARGEST < value < _LARGEST:
        return None
    return value / 1000 if abs(value) >= _MILLISECONDS_FROM else float(value)


def _date_s(text: str) -> float | None:
    if (token := web_tokens.find_web_token(text)) is not None:
        return web_tokens.find_expiry_s(token)
    if re.fullmatch(r"[0-9]{1,15}", text, re.ASCII):
        return _expiry_s(int(text))
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _date_like(value: object, moment: float) -> object:
    """The date `moment` in the form of `value`; None if that is not a date, or a JWT."""
    if _expiry_s(value) is None:
        return None
    if isinstance(value, str):
        if web_tokens.find_web_token(value) is not None:
            return None
        if value.isascii() and value.isdigit():
            return str(_date_like(int(value), moment))
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    is_milliseconds = isinstance(value, (int, float)) and abs(value) >= _MILLISECONDS_FROM
    return int(moment * 1000) if is_milliseconds else int(moment)


# Dotted keys: `*` is the first entry of a table, and a key may lead into the claims of a JWT.


def _path_to(document: Document, dotted: str) -> tuple[str, ...] | None:
    """The keys of an entry that exists, with `*` resolved; not into a JWT."""
    place: object = document
    path = []
    for part in dotted.split("."):
        if not isinstance(place, dict):
            return None
        name = next(iter(place), None) if part == "*" else part
        if name is None or name not in place:
            return None
        path.append(name)
        place = place[name]
    return tuple(path)


def _at(document: Document, path: Iterable[str]) -> object:
    place: object = document
    for name in path:
        place = place[name] if isinstance(place, dict) else None
    return place


def _value_at(document: Document, dotted: str | None) -> object:
    """The value at a dotted key, or None."""
    place: object = document
    for part in (dotted or "").split("."):
        if isinstance(place, str):
            token = web_tokens.find_web_token(place)
            place = None if token is None else dict(token.claims)
        if not isinstance(place, dict):
            return None
        name = next(iter(place), None) if part == "*" else part
        place = place.get(name)
    return place


def _put(document: Document, path: tuple[str, ...], value: object) -> None:
    place = document
    for name in path[:-1]:
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            return
        place = inner
    place[path[-1]] = value
