"""The variables of a single run: from words of the command line, and from files.

Messages name the variable, the file and the line, never the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from atoll.model import rules
from atoll.model.errors import SpecError
from atoll.model.names import printable

FILE_LIMIT_BYTES = 1 << 20
VALUE_LIMIT_BYTES = 128 * 1024 - 256
"""The kernel takes no longer variable."""
TOTAL_LIMIT_BYTES = 1 << 20
_NAME_CHARACTERS = 60
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


def require_variables(env: Mapping[str, str]) -> None:
    """Raises SpecError for a name or a value that no command can get."""
    for name, value in env.items():
        _require(name, value, f"variable `{_shown(name)}`")
    if sum(len(_encoded(name + value)) for name, value in env.items()) > TOTAL_LIMIT_BYTES:
        raise SpecError(f"the variables of a run take more than {TOTAL_LIMIT_BYTES} bytes")


def parse_words(words: Iterable[str], owner: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables in `KEY=VALUE`, or in `KEY` with the value in the owner's environment.

    Raises SpecError.
    """
    found: dict[str, str] = {}
    for word in words:
        name, has_value, value = word.partition("=")
        # A word without `=` may be a value that was given by mistake.
        shown = f"`--env {name}`" if has_value or name in owner else "`--env`"
        _require(name, value, shown)
        if not has_value:
            if name not in owner:
                raise SpecError(
                    f"`--env {name}`: the variable is not set in your environment",
                    hint=f"export {name}, or use --env-file FILE",
                )
            value = owner[name]
            _require(name, value, shown)
        found[name] = value
    return found


def load_file(path: str) -> dict[str, str]:
    """Returns the variables of a file with `KEY=VALUE` lines. Raises SpecError.

    Blank lines and lines that start with `#` are ignored, as is `export` before a name. A value
    may be in single quotes, which keep everything, or in double quotes, with `\\n`, `\\r`, `\\t`,
    `\\"` and `\\\\`; after it, and after white space in a plain value, `#` starts a comment.
    """
    shown = printable(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise SpecError(f"cannot read `{shown}`: {error.strerror}") from error
    if len(content) > FILE_LIMIT_BYTES:
        raise SpecError(f"`{shown}` is larger than {FILE_LIMIT_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(f"`{shown}` is not UTF-8 text") from None
    found: dict[str, str] = {}
    for number, line in enumerate(re.split(r"\r?\n", text), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        where = f"`{shown}` line {number}"
        name, has_value, raw = stripped.partition("=")
        name = name.removeprefix("export ").strip()
        if not has_value:
            raise SpecError(f"{where} is not `KEY=VALUE`")
        value = _parse_value(raw.strip(), where)
        _require(name, value, where)
        found[name] = value
    return found


def _parse_value(raw: str, where: str) -> str:
    if raw[:1] not in ("'", '"'):
        return re.split(r"(?:^|\s)#", raw, maxsplit=1)[0].rstrip()
    pattern = r"'([^']*)'" if raw[0] == "'" else r'"((?:[^"\\]|\\.)*)"'
    match = re.fullmatch(pattern + r"\s*(?:#.*)?", raw)
    if match is None:
        raise SpecError(f"{where}: the quotes do not match")
    if raw[0] == "'":
        return match[1]
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], _unescaped(found[1])), match[1])


def _unescaped(character: str) -> str:
    return character if character in '"\\$`' else "\\" + character


def _require(name: str, value: str, where: str) -> None:
    try:
        rules.require_variable(name)
    except ValueError as error:
        raise SpecError(f"{where}: the name {error}") from None
    if "\0" in value:
        raise SpecError(f"{where}: the value contains a null byte")
    if len(_encoded(value)) > VALUE_LIMIT_BYTES:
        raise SpecError(f"{where}: the value is longer than {VALUE_LIMIT_BYTES} bytes")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _shown(name: str) -> str:
    return printable(name[:_NAME_CHARACTERS])
