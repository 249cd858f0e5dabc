"""From the text of `atoll.toml` to its model, or to all that is wrong with it at once.

The text may be hostile: it is bounded before it is parsed, and nothing of it is shown raw.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from atoll.model.errors import Mistake, SpecError
from atoll.model.names import printable
from atoll.model.relations import Report, find_conflicts
from atoll.model.spec import Limits, ProjectFile, Service, UserFile
from atoll.model.tomlkeys import KeyPath, render_key, scan_keys
from atoll.model.units import render_duration, render_size

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, core_schema

FILE_LIMIT_BYTES = 1 << 20
_DEPTH_LIMIT = 16
_MISTAKES_SHOWN = 100
_WORD_LENGTH = 64
"""Words longer than this get no suggestion: comparing takes the square of their length."""

_PLACE = re.compile(r" \((?:at line (?P<line>\d+), column (?P<column>\d+)|at end of document)\)$")
_TUPLE = re.compile(r"\((?:'[^']*',? ?)+\)")
_QUOTED = re.compile(r"'([^']*)'")
_MESSAGES = {
    "extra_forbidden": "unknown key",
    "missing": "is missing",
    "string_type": "must be text in quotes",
    "bool_type": "must be `true` or `false`",
    "tuple_type": "must be a list",
    "mapping_type": "must be a table",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
}

_File = TypeVar("_File", bound=BaseModel)


def parse_project_file(text: bytes, *, source: str) -> ProjectFile:
    """Raises SpecError with every mistake; `source` is how the file is called in them."""
    return _parse(text, source, ProjectFile, find_conflicts)


def parse_user_file(text: bytes, *, source: str) -> UserFile:
    """Raises SpecError with every mistake; `source` is how the file is called in them."""
    return _parse(text, source, UserFile, lambda _data: ())


def _parse(
    text: bytes,
    source: str,
    model: type[_File],
    conflicts: Callable[[dict[str, object]], Iterable[Report]],
) -> _File:
    shown = printable(source)
    data, lines = _read(text, shown)
    reports = list(conflicts(data))
    try:
        parsed = model.model_validate(data)
    except ValidationError as error:
        found = [_report(model, detail) for detail in error.errors(include_url=False)]
        reports = [*found, *reports]
    else:
        if not reports:
            return parsed
    raise _error(shown, reports, lines)


def _read(text: bytes, source: str) -> tuple[dict[str, object], dict[KeyPath, int]]:
    if len(text) > FILE_LIMIT_BYTES:
        raise _single(source, f"is larger than {FILE_LIMIT_BYTES >> 20} MiB")
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise _single(source, "is not UTF-8", line=line) from error
    lines = _lines(decoded, source)
    try:
        return tomllib.loads(decoded), lines
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), decoded, source) from error
    except RecursionError as error:
        raise _single(source, "is nested too deep") from error
    except ValueError as error:
        # `int()` refuses numbers of thousands of digits in its own words.
        raise _single(source, "holds a number that is too large") from error


def _lines(text: str, source: str) -> dict[KeyPath, int]:
    lines: dict[KeyPath, int] = {}
    for path, line in scan_keys(text):
        if len(path) > _DEPTH_LIMIT:
            raise _single(source, "is nested too deep", line=line)
        # A table that is never named by itself stands where its first key does.
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], line)
    return lines


def _syntax_error(said: str, text: str, source: str) -> SpecError:
    place = _PLACE.search(said)
    reason = _TUPLE.sub(_dotted, _PLACE.sub("", said))
    message = f"not valid TOML: {printable(reason[:1].lower() + reason[1:])[:200]}"
    if place is None or place["line"] is None:
        return _single(source, message, line=max(1, len(text.rstrip().splitlines())))
    return _single(source, f"{message}, at column {place['column']}", line=int(place["line"]))


def _dotted(match: re.Match[str]) -> str:
    return "`" + render_key(_QUOTED.findall(match.group())) + "`"


def _single(source: str, message: str, *, line: int | None = None) -> SpecError:
    mistake = Mistake(source=source, key="", message=message, line=line)
    return SpecError(f"`{source}` has 1 mistake", mistakes=(mistake,))


def _error(source: str, reports: Sequence[Report], lines: Mapping[KeyPath, int]) -> SpecError:
    placed = sorted(
        ((_line_of(report.path, lines), report) for report in reports),
        key=lambda pair: pair[0] or 0,
    )
    mistakes = [_mistake(source, report, line) for line, report in placed[:_MISTAKES_SHOWN]]
    if len(placed) > _MISTAKES_SHOWN:
        more = f"{len(placed) - _MISTAKES_SHOWN} more mistakes are not shown"
        mistakes.append(Mistake(source=source, key="", message=more))
    noun = "mistake" if len(placed) == 1 else "mistakes"
    return SpecError(f"`{source}` has {len(placed)} {noun}", mistakes=tuple(mistakes))


def _mistake(source: str, report: Report, line: int | None) -> Mistake:
    close: list[str] = []
    if report.word and len(report.word) <= _WORD_LENGTH:
        close = difflib.get_close_matches(report.word.lower(), report.choices, n=1)
    return Mistake(
        source=source,
        key=render_key(report.path),
        message=report.message,
        line=line,
        suggestion=close[0] if close else None,
    )


def _line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """The line of the key or, for one that is not written, of the nearest table around it."""
    return next((lines[p] for n in range(len(path), 0, -1) if (p := path[:n]) in lines), None)


def _report(model: type[BaseModel], detail: ErrorDetails) -> Report:
    path = detail["loc"]
    if path and path[-1] == "[key]":
        path = path[:-1]
    match detail["type"]:
        case "value_error":
            return Report(path, str(detail["ctx"]["error"]))
        case "literal_error":
            choices = tuple(_QUOTED.findall(str(detail["ctx"]["expected"])))
            given = detail["input"]
            message = "must be one of " + ", ".join(f"`{choice}`" for choice in choices)
            return Report(path, message, given if isinstance(given, str) else None, choices)
        case "extra_forbidden":
            return _unknown_key(model, path)
        case "too_long":
            return Report(path, f"must have at most {detail['ctx']['max_length']} entries")
        case kind:
            return Report(path, _MESSAGES.get(kind, "has a value of the wrong kind"))


def _unknown_key(model: type[BaseModel], path: KeyPath) -> Report:
    word = str(path[-1])
    if word in _known_keys(ProjectFile, path[:-1]):
        return Report(path, "belongs in a project's own `atoll.toml`")
    return Report(path, "unknown key", word, _known_keys(model, path[:-1]))


@lru_cache(maxsize=64)
def _known_keys(model: type[BaseModel], path: KeyPath) -> tuple[str, ...]:
    """The keys that the table at `path` may hold; none if there can be no such table."""
    table: type[BaseModel] | None = model
    named = False
    for part in path:
        if named:
            named = False
            continue
        fields = {} if table is None else table.model_fields
        found = [field for name, field in fields.items() if (field.alias or name) == part]
        kind = found[0].annotation if found else None
        named = get_origin(kind) is Mapping
        table = _table_in(kind)
    fields = {} if table is None else table.model_fields
    return tuple(field.alias or name for name, field in fields.items())


def _table_in(kind: object) -> type[BaseModel] | None:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((table for inner in get_args(kind) if (table := _table_in(inner))), None)


class _SchemaMaker(GenerateJsonSchema):
    """TOML has no null, so "may be left out" must not read as "may be null"."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if "default" in schema and schema["default"] is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - overridden
        return False


def project_schema() -> dict[str, object]:
    """The JSON schema of `atoll.toml`, for editors: what each key means and may hold."""
    schema = ProjectFile.model_json_schema(
        ref_template="#/definitions/{model}", schema_generator=_SchemaMaker
    )
    definitions = schema.pop("$defs")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **schema,
        "title": "atoll.toml",
        "definitions": definitions,
    }


@dataclass(frozen=True, slots=True)
class Claim:
    """Something in a project file that needs the owner's approval: its key and its value."""

    key: str
    text: str


def commands(file: ProjectFile) -> tuple[Claim, ...]:
    """All that could run something or widen what a capsule may do, section by section."""
    project, capsule = file.project, file.capsule
    claims = [
        *_listed(("project", "carry"), project.carry or ()),
        *_listed(("capsule", "setup"), capsule.setup),
        *_given(("capsule",), {"level": capsule.level, "network": capsule.network}),
        *_listed(("capsule", "allow"), capsule.allow or ()),
        *_given(("capsule",), {"setup_network": capsule.setup_network}),
        *_given(("capsule", "env"), capsule.env),
        *_limits(capsule.limits),
        *_given(("tools",), {"use": file.tools.use}),
    ]
    for name, service in file.services.items():
        claims += _service(("services", name), service)
    for name, secret in file.secrets.items():
        claims += _given(("secrets", name, "from"), secret.source.model_dump())
        claims += _given(("secrets", name), {"as": secret.form.text})
    for name, check in file.checks.items():
        claims += _given(("checks", name), {"run": check.run})
    for name, stage in file.stages.items():
        given = {"branch": stage.branch, "run": stage.run, "undo": stage.undo}
        claims += _given(("stages", name), given)
    return tuple(claims)


def _service(path: KeyPath, service: Service) -> Iterator[Claim]:
    yield from _given(path, {"command": service.command, "use": service.use})
    if service.ready is not None:
        yield from _given((*path, "ready"), {"command": service.ready.command})
    yield from _given((*path, "env"), service.env)
    # A shared service lives outside any one capsule's walls.
    yield from _given(path, {"shared": "true" if service.shared else None})


def _limits(limits: Limits) -> Iterator[Claim]:
    for name, value in limits:
        if value is None:
            continue
        key = render_key(("capsule", "limits", name.removesuffix("_bytes").removesuffix("_s")))
        if name.endswith("_bytes"):
            yield Claim(key, render_size(value))
        else:
            yield Claim(key, render_duration(value) if name.endswith("_s") else f"{value:g}")


def _given(path: KeyPath, values: Mapping[str, str | None]) -> Iterator[Claim]:
    for name, text in values.items():
        if text is not None:
            yield Claim(render_key((*path, name)), text)


def _listed(path: KeyPath, texts: Sequence[str]) -> Iterator[Claim]:
    for index, text in enumerate(texts):
        yield Claim(render_key((*path, index)), text)
