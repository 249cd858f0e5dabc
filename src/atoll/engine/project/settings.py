"""Finds and merges settings: default < user file < project file < environment < command line.

The project file is read from the owner's checkout, never from a capsule. Files are validated by
heavy models, so those are imported only when there is a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atoll.drivers.registry import LAYERED
from atoll.engine.project import levels
from atoll.host import files
from atoll.model import presets
from atoll.model.enclosure import SETTABLE_LIMITS
from atoll.model.errors import Mistake, SpecError
from atoll.model.limits import parse_limit
from atoll.model.names import slug
from atoll.model.presets import MODES
from atoll.model.settings import Setting, Settings

if TYPE_CHECKING:
    from pydantic import BaseModel

    from atoll.model.adapter import AdapterSpec
    from atoll.model.check import CheckSpec
    from atoll.model.projectfile import Claim
    from atoll.model.promotion import StageSpec
    from atoll.model.secret import DeclaredSecret
    from atoll.model.spec import UserFile

FILE_NAME = "atoll.toml"
COMMAND_LINE = "command line"
FILE_LIMIT_BYTES = 1 << 20
TOOLS = ("mise", "nix", "direnv", "none")
ENVIRONMENT = {
    "ATOLL_BASE": "project.base",
    "ATOLL_LEVEL": "capsule.level",
    "ATOLL_NETWORK": "capsule.network",
    "ATOLL_WORKSPACE": "capsule.workspace",
}
_LIMIT_KEY = "capsule.limits."
_LIMIT_VARIABLE = "ATOLL_LIMIT_"
WORKSPACES = ("auto", *LAYERED)
_CHOICES = {
    "capsule.level": levels.NAMES,
    "capsule.network": MODES,
    "capsule.workspace": WORKSPACES,
}


class ProjectFileText(NamedTuple):
    """The project file as it was read once: what is hashed is what is parsed."""

    path: Path
    text: bytes
    claims: tuple[Claim, ...]
    services: dict[str, int]
    """The ports that services ask for, by service."""
    secrets: Mapping[str, DeclaredSecret]
    checks: Mapping[str, CheckSpec] = {}
    """In the order of the file."""
    stages: Mapping[str, StageSpec] = {}
    """Likewise."""

    @property
    def digest(self) -> str:
        """Binds the approval to the place as well as to the content."""
        import hashlib  # noqa: PLC0415 - only when there is a file

        return hashlib.sha256(f"{self.path}\n".encode() + self.text).hexdigest()


class Config(NamedTuple):
    settings: Settings
    file: ProjectFileText | None
    raised: tuple[str, ...] = ()
    """The limits that hold and that the project file raised above those of the owner."""


def load_config(
    root: Path, owner: Mapping[str, str], *, given: Mapping[str, str] | None = None
) -> Config:
    """Merges all layers for the project at `root`; `given` comes from the command line.

    Raises SpecError with every mistake of the layer that contains the first one.
    """
    file, project_layer = _load_project_layer(root)
    user_layer = _load_user_layer(owner)
    said: dict[str, Setting] = {
        **user_layer,
        **project_layer,
        **_parse_words(_from_environment(owner)),
        **_parse_words({key: (text, COMMAND_LINE) for key, text in (given or {}).items()}),
    }
    level = said["capsule.level"].value if "capsule.level" in said else levels.DEFAULT
    defaults = _defaults(root, level)
    values = {**defaults, **said}
    raised = tuple(
        key
        for key, setting in values.items()
        if key.startswith(_LIMIT_KEY)
        and setting.source == FILE_NAME
        and _is_above(setting, user_layer.get(key, defaults.get(key)))
    )
    return Config(settings=Settings(values=values), file=file, raised=raised)


def _is_above(limit: Setting, owners: Setting | None) -> bool:
    """Whether a limit permits more than the owner's; None means no limit."""
    if owners is None or owners.value is None:
        return False
    return limit.value is None or bool(limit.value > owners.value)


def _defaults(root: Path, name: str) -> dict[str, Setting]:
    """The defaults at the chosen level."""
    level = levels.find_level(name)
    limits = level.limits if level else {}
    values = {
        "project.name": slug(root.name) or "project",
        "project.base": "HEAD",
        "capsule.level": levels.DEFAULT,
        "capsule.network": level.networks[0] if level else "open",
        **({"capsule.allow": _presets(root)} if level and "allow" in level.networks else {}),
        **{f"capsule.limits.{key}": value for key, value in limits.items()},
        "capsule.workspace": "auto",
        "tools.use": "none",
    }
    return {key: Setting(key=key, value=value, source="default") for key, value in values.items()}


def _presets(root: Path) -> tuple[str, ...]:
    try:
        return presets.default_presets(os.listdir(root))
    except OSError:
        return presets.ALWAYS


def user_file_path(owner: Mapping[str, str]) -> Path:
    base = owner.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "atoll" / "config.toml"


def load_user_file(owner: Mapping[str, str]) -> UserFile | None:
    """The user's settings file; None if there is none. Raises SpecError with every mistake."""
    path = user_file_path(owner)
    text = files.read_regular(path, limit_bytes=FILE_LIMIT_BYTES)
    if text is None:
        return None
    from atoll.model.projectfile import parse_user_file  # noqa: PLC0415 - heavy

    return parse_user_file(text, source=str(path))


def load_user_agents(
    owner: Mapping[str, str],
) -> tuple[Mapping[str, AdapterSpec], tuple[Mistake, ...]]:
    """The agents of the user's settings that have no mistake, and the mistakes of the others."""
    path = user_file_path(owner)
    text = files.read_regular(path, limit_bytes=FILE_LIMIT_BYTES)
    if text is None:
        return {}, ()
    from atoll.model.projectfile import parse_user_agents  # noqa: PLC0415 - heavy

    return parse_user_agents(text, source=str(path))


def _load_user_layer(owner: Mapping[str, str]) -> dict[str, Setting]:
    file = load_user_file(owner)
    return {} if file is None else _flatten(file, str(user_file_path(owner)))


def load_project_text(root: Path) -> bytes | None:
    return files.read_regular(root / FILE_NAME, limit_bytes=FILE_LIMIT_BYTES)


def _load_project_layer(root: Path) -> tuple[ProjectFileText | None, dict[str, Setting]]:
    text = load_project_text(root)
    if text is None:
        return None, {}
    from atoll.model.projectfile import commands, parse_project_file  # noqa: PLC0415 - heavy

    path = root / FILE_NAME
    parsed = parse_project_file(text, source=FILE_NAME)
    file = ProjectFileText(
        path=path,
        text=text,
        claims=commands(parsed),
        services={name: s.port for name, s in parsed.services.items() if s.port is not None},
        secrets={name: secret.declared for name, secret in parsed.secrets.items()},
        checks={name: check.declared(name) for name, check in parsed.checks.items()},
        stages={name: stage.declared(name) for name, stage in parsed.stages.items()},
    )
    return file, _flatten(parsed, FILE_NAME)


def _flatten(model: BaseModel, source: str) -> dict[str, Setting]:
    """The given values of `[project]`, `[capsule]` and `[tools]` as dotted keys."""
    given: dict[str, Any] = model.model_dump(by_alias=True, exclude_unset=True, mode="python")
    flat: dict[str, Any] = {}
    for section in ("project", "capsule", "tools"):
        for key, value in given.get(section, {}).items():
            if key in ("limits", "env"):
                flat |= {f"{section}.{key}.{name}": inner for name, inner in value.items()}
            elif value is not None:
                flat[f"{section}.{key}"] = value
    return {key: Setting(key=key, value=value, source=source) for key, value in flat.items()}


def _from_environment(owner: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """(text, source) by key."""
    found = {key: (owner[name], name) for name, key in ENVIRONMENT.items() if owner.get(name)}
    for name, text in owner.items():
        if name.startswith(_LIMIT_VARIABLE) and text:
            key = name.removeprefix(_LIMIT_VARIABLE).lower()
            found[f"capsule.limits.{key}"] = (text, name)
    return found


def _parse_words(words: Mapping[str, tuple[str, str]]) -> dict[str, Setting]:
    """Values that were given as text; all mistakes are reported together."""
    layer: dict[str, Setting] = {}
    mistakes: list[Mistake] = []
    for key, (text, source) in words.items():
        try:
            layer[key] = Setting(key=key, value=_parse_word(key, text), source=source)
        except ValueError as error:
            mistakes.append(
                Mistake(
                    source=source,
                    key=_shown_key(key) if source == COMMAND_LINE else key,
                    message=str(error),
                    suggestion=_close(key, text),
                )
            )
    if mistakes:
        noun = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        raise SpecError(f"the request has {noun}", mistakes=tuple(mistakes))
    return layer


def _parse_word(key: str, text: str) -> object:
    if key in _CHOICES and text not in _CHOICES[key]:
        raise ValueError("must be one of " + ", ".join(f"`{name}`" for name in _CHOICES[key]))
    if key.startswith("capsule.limits."):
        name = key.removeprefix("capsule.limits.")
        if name not in SETTABLE_LIMITS:
            raise ValueError("unknown limit")
        return None if text == "none" else parse_limit(SETTABLE_LIMITS[name], text)
    return text


def _shown_key(key: str) -> str:
    """The option that was typed for a setting."""
    limit = key.removeprefix("capsule.limits.")
    return f"--limit {limit}" if limit != key else f"--{key.rpartition('.')[2]}"


def _close(key: str, text: str) -> str | None:
    """A suggestion: a value for a choice, a name for an unknown limit."""
    import difflib  # noqa: PLC0415 - only for a mistake

    if key in _CHOICES:
        found = difflib.get_close_matches(text, _CHOICES[key], n=1)
    elif key.removeprefix("capsule.limits.") not in SETTABLE_LIMITS:
        found = difflib.get_close_matches(key.removeprefix("capsule.limits."), SETTABLE_LIMITS, n=1)
    else:
        found = []
    return found[0] if found else None


def parse_limits(words: Sequence[str]) -> dict[str, str]:
    """`memory=4G` as typed after `--limit`, by setting key."""
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not text:
            raise SpecError(
                f"`--limit {word}` is not of the form `key=value`", hint="--limit time=2h"
            )
        found[f"capsule.limits.{name}"] = text
    return found
