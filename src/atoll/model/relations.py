"""What the parts of a project file must have to do with each other.

Works on the raw tables, so that it can tell its mistakes beside those of single values; whatever
has the wrong shape is left to the model, which reports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import islice

from atoll.model.tomlkeys import KeyPath, render_key

_CYCLE_SHOWN = 6
_CHOICES = 100

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Report:
    """One mistake before its line is known; `word` is compared with `choices` for a suggestion."""

    path: KeyPath
    message: str
    word: str | None = None
    choices: tuple[str, ...] = ()


def find_conflicts(data: Table) -> Iterator[Report]:
    """Every relation that does not hold."""
    services = _tables(data, "services")
    for name, service in services.items():
        yield from _service_conflicts(("services", name), service, services)
    yield from _cycles(services)
    for name, secret in _tables(data, "secrets").items():
        yield from _secret_conflicts(("secrets", name), secret)
    checks = _tables(data, "checks")
    for name, stage in _tables(data, "stages").items():
        yield from _stage_conflicts(("stages", name), stage, checks)


def _service_conflicts(path: KeyPath, service: Table, names: Table) -> Iterator[Report]:
    yield from _exactly_one(path, service, ("command", "use"))
    yield from _missing_names((*path, "needs"), service.get("needs"), names, what="service")
    ready = service.get("ready")
    if isinstance(ready, Mapping):
        yield from _exactly_one((*path, "ready"), ready, ("http", "tcp", "command", "log"))
        if "http" in ready and "port" not in service:
            yield Report((*path, "ready", "http"), "needs the service's `port`")


def _secret_conflicts(path: KeyPath, secret: Table) -> Iterator[Report]:
    source, form = secret.get("from"), secret.get("as")
    if isinstance(source, Mapping):
        yield from _exactly_one((*path, "from"), source, ("env", "file", "command", "keyring"))
    if isinstance(form, Mapping):
        yield from _exactly_one((*path, "as"), form, ("file", "broker"))


def _stage_conflicts(path: KeyPath, stage: Table, checks: Table) -> Iterator[Report]:
    yield from _missing_names((*path, "checks"), stage.get("checks"), checks, what="check")
    if "merge" in stage and "branch" not in stage:
        yield Report((*path, "merge"), "needs a `branch` to land on")
    if "undo" in stage and "run" not in stage:
        yield Report((*path, "undo"), "needs a `run` to take back")


def _exactly_one(path: KeyPath, table: Table, keys: tuple[str, ...]) -> Iterator[Report]:
    given = [key for key in keys if key in table]
    if len(given) != 1:
        listed = ", ".join(f"`{key}`" for key in keys)
        fault = f"has {len(given)}" if given else "has none"
        yield Report(path, f"needs exactly one of {listed}; it {fault}")


def _missing_names(path: KeyPath, wanted: object, names: Table, *, what: str) -> Iterator[Report]:
    choices = tuple(islice(names, _CHOICES))
    for index, name in enumerate(wanted if isinstance(wanted, list) else ()):
        if isinstance(name, str) and name not in names:
            message = f"there is no {what} `{render_key((name,))}`"
            yield Report((*path, index), message, name, choices)


def _cycles(services: Mapping[str, Table]) -> Iterator[Report]:
    """One report is enough: a second cycle shows once the first is cut."""
    graph = {name: _names(service.get("needs")) for name, service in services.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # The sorter lists what comes first first; a reader follows `needs` the other way.
        cycle = [str(name) for name in reversed(error.args[1])]
        order = {name: place for place, name in enumerate(graph)}
        start = min(range(len(cycle) - 1), key=lambda index: order[cycle[index]])
        turned = [*cycle[start:-1], *cycle[: start + 1]]
        steps = [f"`{render_key((name,))}`" for name in turned]
        shown = steps if len(steps) <= _CYCLE_SHOWN else [*steps[:3], "…", *steps[-2:]]
        message = "goes round in a circle: " + " → ".join(shown)
        yield Report(("services", turned[0], "needs"), message)


def _names(wanted: object) -> list[str]:
    return [name for name in wanted if isinstance(name, str)] if isinstance(wanted, list) else []


def _tables(data: Table, key: str) -> dict[str, Table]:
    found = data.get(key)
    if not isinstance(found, Mapping):
        return {}
    return {name: table for name, table in found.items() if isinstance(table, Mapping)}
