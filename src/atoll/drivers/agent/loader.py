"""Loads adapters: the built-in files, and the tables of the user's settings over them.

A table `[agents.NAME]` changes keys of the built-in adapter of that name, or is a whole adapter.
Tables are merged key by key; a list replaces a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.drivers.contracts import HomeFile, InsideLogin
from atoll.model.errors import SpecError

if TYPE_CHECKING:
    from atoll.model.adapter import AdapterSpec

DIRECTORY = Path(__file__).parent / "adapters"


def load_adapters(
    extra: Mapping[str, AdapterSpec], *, source: str = "config.toml"
) -> dict[str, AdapterSpec]:
    """All adapters by name, sorted. Raises SpecError when one of `extra`, which are from `source`,
    is incomplete.
    """
    found = dict(_built_in())
    for name, spec in extra.items():
        whole = _over(found[name], spec) if name in found else spec
        _require_complete(name, whole, source)
        found[name] = whole if whole.title else whole.model_copy(update={"title": name})
    return dict(sorted(found.items()))


@cache
def _built_in() -> Mapping[str, AdapterSpec]:
    from atoll.model.projectfile import parse_adapter_file  # noqa: PLC0415 - pydantic

    return {
        path.stem: parse_adapter_file(path.read_bytes(), source=path.name)
        for path in DIRECTORY.glob("*.toml")
    }


def home_files(
    spec: AdapterSpec,
    inside: InsideLogin,
    values: Mapping[str, str],
    carried: Sequence[HomeFile] = (),
) -> tuple[HomeFile, ...]:
    """The files of a capsule's home: carried ones, those of the adapter, those of the login.

    `values` are `home` and `workspace`. JSON objects of one path are merged, table by table; other
    files of one path replace each other; the later one wins. What only the owner has stays
    read-only; a file that the adapter or the login has a part in is one of the agent's own.
    """
    from atoll.model.adapter import filled  # noqa: PLC0415 - pydantic

    texts = {**values, "key": inside.key}
    own = []
    for one in spec.files:
        is_quoted = one.path.endswith((".json", ".toml"))
        known = {name: _quoted(text) for name, text in texts.items()} if is_quoted else texts
        own.append(HomeFile(one.path, filled(one.content, known).encode()))
    merged: dict[str, HomeFile] = {}
    for file in (*carried, *own, *inside.files):
        below = merged.get(file.path)
        content = file.content if below is None else _merged_file(below.content, file.content)
        merged[file.path] = file._replace(content=content)
    return tuple(merged.values())


def _quoted(text: str) -> str:
    """A text as it stands between the quotes of a JSON or TOML string."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


def _merged_file(below: bytes, above: bytes) -> bytes:
    parts = [_find_object(text) for text in (below, above)]
    if parts[0] is None or parts[1] is None:
        return above
    return (json.dumps(_merged(parts[0], parts[1]), indent=2) + "\n").encode()


def _find_object(text: bytes) -> dict[str, object] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _over(below: AdapterSpec, above: AdapterSpec) -> AdapterSpec:
    given = above.model_dump(exclude_unset=True)
    return type(below).model_validate(_merged(below.model_dump(exclude_unset=True), given))


def _merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    found = dict(below)
    for name, value in above.items():
        former = found.get(name)
        is_table = isinstance(value, Mapping) and isinstance(former, Mapping)
        found[name] = _merged(former, value) if is_table else value  # type: ignore[arg-type]
    return found


def _require_complete(name: str, spec: AdapterSpec, source: str) -> None:
    missing = list(_missing(spec))
    if missing:
        listed = " and ".join(f"`{key}`" for key in missing)
        raise SpecError(
            f"`[agents.{name}]` in `{source}` needs {listed}",
            hint=f'program = "{name}", commands = {{ headless = ["{name}", "{{prompt}}"] }}',
        )
    lines = spec.commands
    wanted = {"argument": "{prompt}", "file": "{prompt_file}", "stdin": ""}[lines.prompt_by]
    for key, words in (("headless", lines.headless), ("headless_resume", lines.headless_resume)):
        if words and not any(wanted in word for word in words):
            raise SpecError(
                f"`agents.{name}.commands.{key}` in `{source}` has no `{wanted}`, so that the "
                "agent would get no prompt",
                hint=f'add "{wanted}" to its words, or set prompt_by = "stdin"',
            )


def _missing(spec: AdapterSpec) -> Iterable[str]:
    if not spec.program:
        yield "program"
    if not spec.commands.headless and not spec.commands.interactive:
        yield "commands.headless"
