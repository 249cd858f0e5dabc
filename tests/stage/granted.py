"""The brokered secrets of a stage's capsule: a file, which a test replaces."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from atoll.engine.secret.brokered import BrokeredSecret
from atoll.model.errors import SecretUnavailable
from atoll.model.secret import (
    BrokerScope,
    Delivery,
    DeliveryKind,
    GrantRecord,
    OriginKind,
    SecretOrigin,
    SecretRecord,
    Substitution,
    marker_of,
)

SCOPE = ("hosts", "allow", "deny", "upstream", "repository")


class FileSecrets:
    """`SecretRecords`: a list of tables with `name`, `placeholder`, `hosts`, …, and `value`, or
    `problem` when there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find(self) -> tuple[BrokeredSecret, ...]:
        return tuple(_secret(number, table) for number, table in enumerate(self._tables()))

    def _tables(self) -> list[dict]:
        return json.loads(self._path.read_text()) if self._path.exists() else []

    def read(self, secret: BrokeredSecret) -> tuple[Substitution, ...]:
        [table] = [t for t in self._tables() if t["name"] == secret.grant.secret.name]
        if "problem" in table:
            raise SecretUnavailable(table["problem"], hint="log in again")
        return (Substitution(marker_of(secret.grant.placeholder), table["value"]),)

    def note(self, secret: BrokeredSecret, refused: str) -> None:
        with self._path.with_name("uses.log").open("a") as file:
            file.write(f"{secret.grant.secret.name} {refused or 'used'}\n")


def _secret(number: int, table: dict) -> BrokeredSecret:
    parts: dict[str, Any] = {key: table[key] for key in SCOPE if key in table}
    lists = {key: tuple(value) for key, value in parts.items() if isinstance(value, list)}
    scope = BrokerScope(**{**parts, **lists})
    origin = SecretOrigin(OriginKind.LOGIN if "problem" in table else OriginKind.TYPED)
    delivery = Delivery(DeliveryKind.BROKER, broker=scope)
    record = SecretRecord(number, "project", table["name"], origin, delivery, None, time.time())
    grant = GrantRecord(record, 1, table["placeholder"], time.time())
    return BrokeredSecret(grant, model=table.get("model", False))
