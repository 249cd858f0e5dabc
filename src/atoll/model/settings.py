"""Merged settings, each value with its source."""

from __future__ import annotations

from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One value and its source: `default`, a file, a variable or the command line."""

    key: str
    value: Any
    source: str


class Settings(NamedTuple):
    """Settings after the merge: default < user file < project file < environment < command line."""

    values: dict[str, Setting]

    def value(self, key: str, default: Any = None) -> Any:
        found = self.values.get(key)
        return default if found is None else found.value

    def below(self, prefix: str) -> dict[str, Any]:
        """All values whose key starts with `prefix.`, by the rest of the key."""
        return {
            key.removeprefix(f"{prefix}."): setting.value
            for key, setting in self.values.items()
            if key.startswith(f"{prefix}.")
        }

    def source(self, key: str) -> str:
        return self.values[key].source
