"""Which agents there are on this machine, and which one a task is for."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import HomeFile
from atoll.engine.agent import logins
from atoll.engine.agent.logins import ChosenLogin
from atoll.engine.agent.preparation import SCRIPT
from atoll.engine.project.settings import load_user_agents, load_user_file, user_file_path
from atoll.engine.state.session import Session
from atoll.host import files
from atoll.model.adapter import AdapterSpec, CommandLines
from atoll.model.errors import PrerequisiteError, SpecError, StateError
from atoll.model.names import printable
from atoll.model.state import CapsuleRecord, ProjectRecord

SCRIPT_NAME = "script"
COMMAND_NAME = "command"
_SCRIPT_PREFIX = "script:"
_SCRIPT_LIMIT_BYTES = 1 << 20


class ChosenAgent(NamedTuple):
    """An agent that can be started."""

    name: str
    """Of its adapter."""
    spec: AdapterSpec
    login: ChosenLogin | None = None
    files: tuple[HomeFile, ...] = ()
    """More files for the private home."""
    command: tuple[str, ...] = ()
    """The command line of the agent `command`."""


class AvailableAgent(NamedTuple):
    """What there is of an agent on this machine."""

    name: str
    title: str
    program: str | None
    version: str
    login: str
    cure: str
    """The next command to make it usable; empty when it is."""

    @property
    def is_usable(self) -> bool:
        return not self.cure


def adapters(session: Session) -> dict[str, AdapterSpec]:
    """All agents by name, with those of the user's settings."""
    file = load_user_file(session.owner)
    source = str(user_file_path(session.owner))
    return registry.adapters({} if file is None else file.agents, source=source)


def _sound_adapters(session: Session) -> dict[str, AdapterSpec]:
    """All agents by name but those of the user's settings that have a mistake; warns of these."""
    try:
        return adapters(session)
    except SpecError:
        given, mistakes = load_user_agents(session.owner)
    for mistake in mistakes:
        session.warn(mistake.render())
    found = registry.adapters({})
    for name, spec in given.items():
        try:
            known = registry.adapters({name: spec}, source=str(user_file_path(session.owner)))
        except SpecError as error:
            session.warn(f"{error.message}\nhint: {error.hint}")
        else:
            found[name] = known[name]
    return dict(sorted(found.items()))


def available(session: Session, project: ProjectRecord) -> list[AvailableAgent]:
    """Every agent that Atoll knows, with what is missing."""
    found = _sound_adapters(session)
    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(lambda name: _look_at(session, project, name, found[name]), found))


def _look_at(
    session: Session, project: ProjectRecord, name: str, spec: AdapterSpec
) -> AvailableAgent:
    program = _find_program(session, spec, [project.root])
    version = registry.read_version(spec, program, session.owner) if program else ""
    login = logins.describe(session, project.id, spec)
    cure = login.cure if program else spec.install
    if program and not login.is_usable:
        cure = cure or "log in with its own program"
    if not program:
        cure = cure or f"install `{spec.program}`"
    return AvailableAgent(name, spec.title or name, program, version, login.text, cure)


def _find_program(session: Session, spec: AdapterSpec, avoid: Sequence[str]) -> str | None:
    return registry.find_agent_program(spec, session.owner.get("PATH", ""), avoid=avoid)


def choose(
    session: Session, project: ProjectRecord, name: str | None, command: Sequence[str] = ()
) -> ChosenAgent:
    """The agent of this name, or the one that is used when none is named.

    Raises SpecError for an unknown one, PrerequisiteError when it is not installed, StateError when
    it is not logged in.
    """
    if name is not None and name.startswith(_SCRIPT_PREFIX):
        return _script(name.removeprefix(_SCRIPT_PREFIX))
    if name == COMMAND_NAME:
        return _command(tuple(command))
    if command:
        raise SpecError(
            f"`{printable(name or command[0])}` takes one prompt",
            hint='atoll spawn AGENT "PROMPT", or: atoll spawn command "PROMPT" -- CMD',
        )
    known = adapters(session)
    chosen = _default(session, project, known) if name is None else name
    if chosen not in known:
        raise _unknown(chosen, known)
    spec = known[chosen]
    if _find_program(session, spec, [project.root]) is None:
        raise PrerequisiteError(
            f"{spec.title or chosen} is not installed: there is no `{spec.program}` on your PATH",
            hint=spec.install or f"install `{spec.program}`",
        )
    login = logins.require_chosen(session, project.id, spec)
    return ChosenAgent(chosen, logins.with_model(spec, login), login)


def again(
    session: Session, capsule: CapsuleRecord, name: str, command: Sequence[str]
) -> ChosenAgent:
    """The agent that a capsule has, for its next turn. Raises StateError when it is not logged in
    any more.
    """
    spec = find_spec(session, name, command)
    login = logins.require_same(session, capsule, name, spec)
    return ChosenAgent(name, logins.with_model(spec, login), login)


def find_spec(session: Session, name: str, command: Sequence[str]) -> AdapterSpec:
    """The adapter of an agent that a capsule has. Raises StateError when there is none any more."""
    if name == SCRIPT_NAME:
        return _SCRIPT_SPEC
    if name == COMMAND_NAME:
        return _command(tuple(command)).spec
    found = adapters(session).get(name)
    if found is None:
        raise StateError(
            f"the agent `{printable(name)}` is not known any more", hint="atoll agents --available"
        )
    return found


def is_known(session: Session, word: str) -> bool:
    """Whether a word names an agent, and is not a prompt."""
    if word.startswith(_SCRIPT_PREFIX) or word == COMMAND_NAME:
        return True
    return word in adapters(session)


def require_not_mistyped(session: Session, word: str) -> None:
    """Raises SpecError for a single word that is neither an agent nor much of a prompt."""
    if word.split() == [word]:
        raise _unknown(word, adapters(session))


def _unknown(name: str, known: dict[str, AdapterSpec]) -> SpecError:
    close = difflib.get_close_matches(name, [*known, COMMAND_NAME, _SCRIPT_PREFIX], n=1)
    suffix = f"; did you mean `{close[0]}`?" if close else ""
    return SpecError(
        f"there is no agent `{printable(name[:60])}`{suffix}", hint="atoll agents --available"
    )


def _default(session: Session, project: ProjectRecord, known: dict[str, AdapterSpec]) -> str:
    file = load_user_file(session.owner)
    if file is not None and file.agent.default is not None:
        return file.agent.default
    installed = [
        name for name, spec in known.items() if _find_program(session, spec, [project.root])
    ]
    if len(installed) == 1:
        return installed[0]
    if not installed:
        raise PrerequisiteError("no agent is installed", hint="atoll agents --available")
    names = ", ".join(f"`{name}`" for name in installed)
    raise SpecError(
        f"several agents are installed: {names}",
        hint=f'name one: atoll spawn {installed[0]} "PROMPT", or set `[agent] default`',
    )


_SCRIPT_SPEC = AdapterSpec(
    title="Script",
    commands=CommandLines(
        headless=(f"{{home}}/{SCRIPT}", "{prompt}"),
        headless_resume=(f"{{home}}/{SCRIPT}", "{prompt}"),
        interactive=(f"{{home}}/{SCRIPT}", "{prompt}"),
    ),
    events="script",
    needs_login=False,
)


def _script(path: str) -> ChosenAgent:
    """A scripted agent: a program of the owner's that is copied into the capsule."""
    shown = printable(path)
    if not path:
        raise SpecError("`script:` needs a file", hint='atoll spawn script:FILE "PROMPT"')
    try:
        content = files.read_regular(Path(os.path.realpath(path)), limit_bytes=_SCRIPT_LIMIT_BYTES)
    except OSError as error:
        raise SpecError(f"cannot read `{shown}`: {error.strerror}") from error
    if content is None:
        raise SpecError(f"there is no file `{shown}`")
    if b"\0" in content:
        raise SpecError(f"`{shown}` is not a text file")
    return scripted(content if content.startswith(b"#!") else b"#!/bin/sh\n" + content)


def scripted(content: bytes) -> ChosenAgent:
    """A scripted agent with this content, which names its interpreter."""
    return ChosenAgent(SCRIPT_NAME, _SCRIPT_SPEC, files=(HomeFile(SCRIPT, content),))


def _command(words: tuple[str, ...]) -> ChosenAgent:
    if not words:
        raise SpecError(
            "the agent `command` needs a command line",
            hint='atoll spawn command "PROMPT" -- CMD {prompt}',
        )
    lines = CommandLines.model_construct(
        headless=words, headless_resume=words, interactive=words, prompt_by="argument"
    )
    spec = AdapterSpec(title="Command", commands=lines, events="text", needs_login=False)
    return ChosenAgent(COMMAND_NAME, spec, command=words)
