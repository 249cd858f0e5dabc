"""Rows of the store as the records that the rest knows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from atoll.engine.database import DamagedError
from atoll.model.plan import Lease
from atoll.model.state import Capsule, CapsuleState, Outcome, Reason, Run, RunState, Snapshot

P = ParamSpec("P")
R = TypeVar("R")


def _from_row(function: Callable[P, R]) -> Callable[P, R]:
    """Explains a row that holds something which Atoll does not write."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedError(f"the database holds a damaged record: {error}") from error

    return checked


@_from_row
def capsule_of(row: Mapping[str, Any], ports: Sequence[Any]) -> Capsule:
    """`ports` are the rows of its leases, in order."""
    given = ("removal", "state", "exported", "automatic", "narrowed")
    fields = {key: value for key, value in dict(row).items() if key not in given}
    return Capsule(
        **fields,
        state=CapsuleState(row["state"]),
        ports={port["name"]: port["port"] for port in ports},
        numbers={port["name"]: port["number"] for port in ports if port["number"] is not None},
        exported=tuple(json.loads(row["exported"])),
        automatic=bool(row["automatic"]),
    )


@_from_row
def snapshot_of(row: Mapping[str, Any]) -> Snapshot:
    fields = dict(row)
    fields["layers"] = tuple(json.loads(fields["layers"]))
    fields["automatic"], fields["synced"] = bool(fields["automatic"]), bool(fields["synced"])
    return Snapshot(**fields)


@_from_row
def run_of(row: Mapping[str, Any]) -> Run:
    fields = dict(row)
    fields["argv"] = tuple(json.loads(fields["argv"]))
    fields["write"] = tuple(json.loads(fields["write"]))
    fields["state"] = RunState(fields["state"])
    fields["background"], fields["tty"] = bool(fields["background"]), bool(fields["tty"])
    if fields["outcome"] is not None:
        payload: dict[str, Any] = json.loads(fields["outcome"])
        payload["reason"] = Reason(payload["reason"])
        fields["outcome"] = Outcome(**payload)
    return Run(**fields)


@_from_row
def lease_of(row: Mapping[str, Any]) -> Lease:
    return Lease.parse(row["kind"], json.loads(row["payload"]))
