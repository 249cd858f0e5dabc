"""Which editor `atoll edit` and `atoll code` start in a capsule's view, and with which arguments.

Single-process editors pass a new window to the running instance, which sees the owner's checkout at
the same path. So each capsule has its own settings directory for them, on the host, where no agent
can write. The trust of the owner's checkout does not apply there: the editor asks again before it
runs code of the workspace.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll.engine.run import owner_programs
from atoll.engine.state.leases import isolation_plan
from atoll.engine.state.session import Session
from atoll.host import files, programs
from atoll.model.errors import PrerequisiteError, SpecError
from atoll.model.names import printable
from atoll.model.state import CapsuleRecord

_TERMINAL = ("nvim", "vim", "nano", "micro", "emacs", "vi")
_VS_CODE = {
    "code": "Code",
    "code-insiders": "Code - Insiders",
    "codium": "VSCodium",
    "cursor": "Cursor",
    "windsurf": "Windsurf",
}
"""By program: where the owner's settings are below the configuration directory."""
_JETBRAINS = (
    "idea", "pycharm", "webstorm", "goland", "clion", "phpstorm", "rubymine", "rustrover", "rider",
)  # fmt: skip
_COPIED = ("settings.json", "keybindings.json")
_LIMIT_BYTES = 1 << 20


def needs_walls(session: Session, capsule: CapsuleRecord) -> bool:
    """Whether an editor must run inside of the walls, as the capsule's user: to root's own programs
    the files are another user's.
    """
    return isolation_plan(session, capsule).uid is not None


def find_terminal_editor(session: Session, capsule: CapsuleRecord) -> tuple[str, ...]:
    """The owner's editor by VISUAL or EDITOR, or else the first that is installed.

    Raises SpecError when such a variable is malformed, PrerequisiteError when there is none.
    """
    for variable in ("VISUAL", "EDITOR"):
        text = session.owner.get(variable, "")
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise SpecError(f"`{variable}={printable(text)}`: {error}") from error
        if words:
            argv = owner_programs.find_program(session, capsule, words)
            return _completed(session, capsule, argv, [capsule.workspace])
    found = _find_first(session, capsule, _TERMINAL)
    if found is None:
        raise PrerequisiteError(
            "no editor is known: neither VISUAL nor EDITOR is set",
            hint=f"atoll edit {capsule.name} -- EDITOR",
        )
    return _completed(session, capsule, (found,), [capsule.workspace])


def find_window_editor(
    session: Session, capsule: CapsuleRecord, paths: Sequence[str], chosen: str | None = None
) -> tuple[str, ...]:
    """VS Code or one of its relatives, a JetBrains IDE, or `chosen`, with `paths` in the workspace.

    Raises PrerequisiteError when there is none, SpecError for a path outside of the workspace.
    """
    opened = [_require_inside(capsule, path) for path in paths] or [capsule.workspace]
    if chosen is not None:
        argv = owner_programs.find_program(session, capsule, [chosen])
        return _completed(session, capsule, argv, opened)
    found = _find_first(session, capsule, (*_VS_CODE, *_JETBRAINS))
    if found is None:
        raise PrerequisiteError(
            f"none of {', '.join((*_VS_CODE, *_JETBRAINS))} is on your PATH",
            hint=f"atoll code {capsule.name} --with PROGRAM; or: atoll edit {capsule.name}",
        )
    return _completed(session, capsule, (found,), opened)


def _find_first(session: Session, capsule: CapsuleRecord, names: Sequence[str]) -> str | None:
    path = session.owner.get("PATH", os.defpath)
    avoid = (capsule.workspace, str(session.home))
    found = (programs.find_program(name, path=path, avoid=avoid) for name in names)
    return next((program for program in found if program is not None), None)


def _require_inside(capsule: CapsuleRecord, path: str) -> str:
    """An absolute path, so that none is taken for an option."""
    place = os.path.normpath(os.path.join(capsule.workspace, path))
    if not programs.is_below(place, [capsule.workspace]):
        raise SpecError(f"`{printable(path)}` is not in the workspace of `{capsule.name}`")
    return place


def _completed(
    session: Session, capsule: CapsuleRecord, argv: Sequence[str], paths: Sequence[str]
) -> tuple[str, ...]:
    """The command with what its editor needs to be an instance of its own, and to be waited for."""
    program, *options = argv
    name = os.path.basename(program)
    if name in _VS_CODE:
        place = _settings_place(capsule, name)
        _copy_settings(session.owner, name, place / "User")
        own = ["--wait", "--new-window", "--user-data-dir", str(place)]
        # Chromium's own sandbox refuses to run as root.
        own += ["--no-sandbox"] if os.geteuid() == 0 else []
        given = [option for option in options if option not in ("--wait", "-w", "--new-window")]
        return (program, *own, *given, *paths)
    if name in _JETBRAINS:
        place = _settings_place(capsule, name)
        properties = place / "idea.properties"
        lines = [f"idea.{kind}.path={place}/{kind}\n" for kind in ("config", "system", "log")]
        files.write_atomic(properties, "".join(lines).encode(), durable=False)
        env = programs.find_program("env") or "/usr/bin/env"
        return (env, f"{name.upper()}_PROPERTIES={properties}", program, *options, *paths)
    return (program, *options, *paths)


def _settings_place(capsule: CapsuleRecord, name: str) -> Path:
    place = Path(capsule.directory, "editors", name)
    files.make_private_directory(place.parent)
    files.make_private_directory(place)
    return place


def _copy_settings(owner: Mapping[str, str], name: str, target: Path) -> None:
    """The owner's preferences, at the first start. Not their list of trusted folders."""
    if target.is_dir():
        return
    home = owner.get("HOME", "/nonexistent")
    source = Path(owner.get("XDG_CONFIG_HOME") or f"{home}/.config", _VS_CODE[name], "User")
    files.make_private_directory(target)
    for copied in _COPIED:
        content = files.read_regular(source / copied, limit_bytes=_LIMIT_BYTES)
        if content is not None:
            files.write_atomic(target / copied, content, durable=False)
