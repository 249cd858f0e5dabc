"""Parses `atoll.toml` into its model, and reports all mistakes at once.

The text may be hostile: its size is limited before parsing, and no part of it is printed raw. Rules
that relate several tables are checked on the raw tables, so that their violations are reported
together with those of single values; values of the wrong shape are left to the model.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import TYPE_CHECKING, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from atoll.model.adapter import AdapterSpec
from atoll.model.enclosure import LIMITS_BY_FIELD
from atoll.model.errors import Mistake, SpecError
from atoll.model.limits import render_limit
from atoll.model.names import printable
from atoll.model.spec import LimitsSpec, ProjectFile, Service, UserFile
from atoll.model.tomlkeys import KeyPath, render_key, scan_keys

_CYCLE_SHOWN = 6
_CHOICES = 100

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ProblemReport:
    """One mistake before its line is known; `word` is compared with `choices` for a suggestion."""

    path: KeyPath
    message: str
    word: str | None = None
    choices: tuple[str, ...] = ()


def find_conflicts(data: Table) -> Iterator[ProblemReport]:
    """Reports every violated relation between tables."""
    services = _tables(data, "services")
    for name, service in services.items():
        yield from _service_conflicts(("services", name), service, services)
    yield from _cycles(services)
    for name, secret in _tables(data, "secrets").items():
        yield from _secret_conflicts(("secrets", name), secret)
    checks = _tables(data, "checks")
    for name, check in checks.items():
        yield from _missing_names(
            ("checks", name, "needs"), check.get("needs"), services, what="service"
        )
    for name, stage in _tables(data, "stages").items():
        yield from _stage_conflicts(("stages", name), stage, checks)


def _service_conflicts(path: KeyPath, service: Table, names: Table) -> Iterator[ProblemReport]:
    yield from _exactly_one(path, service, ("command", "use"))
    yield from _missing_names((*path, "needs"), service.get("needs"), names, what="service")
    ready = service.get("ready")
    if isinstance(ready, Mapping):
        yield from _exactly_one((*path, "ready"), ready, ("http", "tcp", "command", "log"))
        if "http" in ready and "port" not in service:
            yield ProblemReport((*path, "ready", "http"), "needs the service's `port`")


def _secret_conflicts(path: KeyPath, secret: Table) -> Iterator[ProblemReport]:
    source, form = secret.get("from"), secret.get("as")
    if isinstance(source, Mapping):
        yield from _exactly_one((*path, "from"), source, ("env", "file", "command", "keyring"))
    if isinstance(form, Mapping):
        yield from _exactly_one((*path, "as"), form, ("file", "broker"))
        for key in ("allow", "deny", "repository"):
            if key in form and "broker" not in form:
                yield ProblemReport((*path, "as", key), "needs `broker`")


def _stage_conflicts(path: KeyPath, stage: Table, checks: Table) -> Iterator[ProblemReport]:
    yield from _missing_names((*path, "checks"), stage.get("checks"), checks, what="check")
    if "undo" in stage and "run" not in stage:
        yield ProblemReport((*path, "undo"), "needs a `run` to undo")
    if stage.get("merge") == "patch" and "branch" in stage:
        yield ProblemReport((*path, "branch"), "`patch` changes the working tree and no branch")
    if "soak" in stage and "health" not in stage:
        yield ProblemReport((*path, "soak"), "needs a `health` command that has to hold")


def _exactly_one(path: KeyPath, table: Table, keys: tuple[str, ...]) -> Iterator[ProblemReport]:
    given = [key for key in keys if key in table]
    if len(given) != 1:
        listed = ", ".join(f"`{key}`" for key in keys)
        fault = f"has {len(given)}" if given else "has none"
        yield ProblemReport(path, f"needs exactly one of {listed}; it {fault}")


def _missing_names(
    path: KeyPath, wanted: object, names: Table, *, what: str
) -> Iterator[ProblemReport]:
    choices = tuple(islice(names, _CHOICES))
    for index, name in enumerate(wanted if isinstance(wanted, list) else ()):
        if isinstance(name, str) and name not in names:
            message = f"there is no {what} `{render_key((name,))}`"
            yield ProblemReport((*path, index), message, name, choices)


def _cycles(services: Mapping[str, Table]) -> Iterator[ProblemReport]:
    """Reports one cycle: a second one shows up once the first is fixed."""
    graph = {name: _names(service.get("needs")) for name, service in services.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # The sorter lists dependencies first; a reader follows `needs` in the other direction.
        cycle = [str(name) for name in reversed(error.args[1])]
        order = {name: place for place, name in enumerate(graph)}
        start = min(range(len(cycle) - 1), key=lambda index: order[cycle[index]])
        turned = [*cycle[start:-1], *cycle[: start + 1]]
        steps = [f"`{render_key((name,))}`" for name in turned]
        shown = steps if len(steps) <= _CYCLE_SHOWN else [*steps[:3], "…", *steps[-2:]]
        message = "has a dependency cycle: " + " → ".join(shown)
        yield ProblemReport(("services", turned[0], "needs"), message)


def _names(wanted: object) -> list[str]:
    return [name for name in wanted if isinstance(name, str)] if isinstance(wanted, list) else []


def _tables(data: Table, key: str) -> dict[str, Table]:
    found = data.get(key)
    if not isinstance(found, Mapping):
        return {}
    return {name: table for name, table in found.items() if isinstance(table, Mapping)}


if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, core_schema

FILE_LIMIT_BYTES = 1 << 20
_DEPTH_LIMIT = 16
_MISTAKES_SHOWN = 100
_WORD_LENGTH = 64
"""Longer words get no suggestion: comparison is quadratic."""

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
    """Raises SpecError with every mistake; `source` is the file's name in messages."""
    return _parse(text, source, ProjectFile, find_conflicts)


def parse_user_file(text: bytes, *, source: str) -> UserFile:
    """Raises SpecError with every mistake; `source` is the file's name in messages."""
    return _parse(text, source, UserFile, lambda _data: ())


def parse_user_agents(
    text: bytes, *, source: str
) -> tuple[dict[str, AdapterSpec], tuple[Mistake, ...]]:
    """The agents of a settings file that have no mistake, and the mistakes of the others. Raises
    SpecError for a text that is not TOML.
    """
    shown = printable(source)
    data, lines = _read(text, shown)
    found: dict[str, AdapterSpec] = {}
    mistakes: list[Mistake] = []
    for name, table in _tables(data, "agents").items():
        try:
            found |= UserFile.model_validate({"agents": {name: table}}).agents
        except ValidationError as error:
            reports = [_report(UserFile, detail) for detail in error.errors(include_url=False)]
            mistakes += _error(shown, reports, lines).mistakes
    return found, tuple(mistakes)


def parse_adapter_file(text: bytes, *, source: str) -> AdapterSpec:
    """Raises SpecError with every mistake; `source` is the file's name in messages."""
    return _parse(text, source, AdapterSpec, lambda _data: ())


def _parse(
    text: bytes,
    source: str,
    model: type[_File],
    conflicts: Callable[[dict[str, object]], Iterable[ProblemReport]],
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
        # `int()` refuses numbers of thousands of digits with a message of its own.
        raise _single(source, "contains a number that is too large") from error


def _lines(text: str, source: str) -> dict[KeyPath, int]:
    lines: dict[KeyPath, int] = {}
    for path, line in scan_keys(text):
        if len(path) > _DEPTH_LIMIT:
            raise _single(source, "is nested too deep", line=line)
        # The line of an implicit table is that of its first key.
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], line)
    return lines


def _syntax_error(parser_message: str, text: str, source: str) -> SpecError:
    place = _PLACE.search(parser_message)
    reason = _TUPLE.sub(_dotted, _PLACE.sub("", parser_message))
    message = f"not valid TOML: {printable(reason[:1].lower() + reason[1:])[:200]}"
    if place is None or place["line"] is None:
        return _single(source, message, line=max(1, len(text.rstrip().splitlines())))
    return _single(source, f"{message}, at column {place['column']}", line=int(place["line"]))


def _dotted(match: re.Match[str]) -> str:
    return "`" + render_key(_QUOTED.findall(match.group())) + "`"


def _single(source: str, message: str, *, line: int | None = None) -> SpecError:
    mistake = Mistake(source=source, key="", message=message, line=line)
    return SpecError(f"`{source}` has 1 mistake", mistakes=(mistake,))


def _error(
    source: str, reports: Sequence[ProblemReport], lines: Mapping[KeyPath, int]
) -> SpecError:
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


def _mistake(source: str, report: ProblemReport, line: int | None) -> Mistake:
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
    """The line of the key or, for a missing key, of the nearest enclosing table."""
    return next((lines[p] for n in range(len(path), 0, -1) if (p := path[:n]) in lines), None)


def _report(model: type[BaseModel], detail: ErrorDetails) -> ProblemReport:
    path = detail["loc"]
    if path and path[-1] == "[key]":
        path = path[:-1]
    match detail["type"]:
        case "value_error":
            return ProblemReport(path, str(detail["ctx"]["error"]))
        case "literal_error":
            choices = tuple(_QUOTED.findall(str(detail["ctx"]["expected"])))
            given = detail["input"]
            message = "must be one of " + ", ".join(f"`{choice}`" for choice in choices)
            return ProblemReport(path, message, given if isinstance(given, str) else None, choices)
        case "extra_forbidden":
            return _unknown_key(model, path)
        case "too_long":
            return ProblemReport(path, f"must have at most {detail['ctx']['max_length']} entries")
        case kind:
            return ProblemReport(path, _MESSAGES.get(kind, "has a value of the wrong kind"))


def _unknown_key(model: type[BaseModel], path: KeyPath) -> ProblemReport:
    word = str(path[-1])
    if model is UserFile and word in _known_keys(ProjectFile, path[:-1]):
        return ProblemReport(path, "belongs in a project's own `atoll.toml`")
    return ProblemReport(path, "unknown key", word, _known_keys(model, path[:-1]))


@lru_cache(maxsize=64)
def _known_keys(model: type[BaseModel], path: KeyPath) -> tuple[str, ...]:
    """The keys that the table at `path` may have; empty if no such table can exist."""
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
    """Describes optional keys as optional instead of nullable: TOML has no null."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if "default" in schema and schema["default"] is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - overridden
        return False


def project_schema() -> dict[str, object]:
    """The JSON schema of `atoll.toml`, for editors."""
    return _schema_of(ProjectFile, "atoll.toml")


def user_schema() -> dict[str, object]:
    """The JSON schema of the user's own settings."""
    return _schema_of(UserFile, "config.toml")


def _schema_of(model: type[BaseModel], title: str) -> dict[str, object]:
    schema = model.model_json_schema(
        ref_template="#/definitions/{model}", schema_generator=_SchemaMaker
    )
    definitions = schema.pop("$defs")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **schema,
        "title": title,
        "definitions": definitions,
    }


@dataclass(frozen=True, slots=True)
class Claim:
    """A value in a project file that needs the owner's approval, with its key."""

    key: str
    text: str


def commands(file: ProjectFile) -> tuple[Claim, ...]:
    """Everything that could run a command or widen a capsule's permissions, by section."""
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
        given |= {"health": stage.health}
        claims += _given(("stages", name), given)
    return tuple(claims)


def _service(path: KeyPath, service: Service) -> Iterator[Claim]:
    yield from _given(path, {"command": service.command, "use": service.use})
    if service.ready is not None:
        yield from _given((*path, "ready"), {"command": service.ready.command})
    yield from _given((*path, "env"), service.env)
    # A shared service runs outside the capsules' walls.
    yield from _given(path, {"shared": "true" if service.shared else None})


def _limits(limits: LimitsSpec) -> Iterator[Claim]:
    for name, value in limits:
        if value is not None:
            kind = LIMITS_BY_FIELD[name]
            key = render_key(("capsule", "limits", kind.name))
            yield Claim(key, render_limit(kind, value))


def _given(path: KeyPath, values: Mapping[str, str | None]) -> Iterator[Claim]:
    for name, text in values.items():
        if text is not None:
            yield Claim(render_key((*path, name)), text)


def _listed(path: KeyPath, texts: Sequence[str]) -> Iterator[Claim]:
    for index, text in enumerate(texts):
        yield Claim(render_key((*path, index)), text)
