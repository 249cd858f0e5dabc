"""Puts what an agent needs into the private home of a capsule.

Everything is written by a run of Atoll inside: the home is writable for agents, so no path below it
is used on the host.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import HomeFile, InsideLogin
from atoll.engine.agent import carried_files, logins
from atoll.engine.agent.logins import ChosenLogin
from atoll.engine.enclosure import enclosures
from atoll.engine.network import rules
from atoll.engine.run import internal_runs
from atoll.engine.state.session import Session
from atoll.model.adapter import AdapterSpec, command_line, filled
from atoll.model.errors import DriverError
from atoll.model.names import printable
from atoll.model.state import CapsuleRecord

DIRECTORY = ".atoll-agent"
"""Below the private home: prompts, and the file of a scripted agent."""
SCRIPT = f"{DIRECTORY}/script"
_UNPACK = 'umask 077 && cd "$HOME" && tar -xf -'
"""A file that is there already is replaced, not opened: it may be read-only."""
_BEFORE_S = 120.0
_NO_LOGIN = InsideLogin({}, ())


class InsidePlaces(NamedTuple):
    """Where an agent finds itself."""

    home: str
    workspace: str

    @property
    def values(self) -> dict[str, str]:
        return {"home": self.home, "workspace": self.workspace}


def places(session: Session, capsule: CapsuleRecord) -> InsidePlaces:
    inside = enclosures.enclosure(session, capsule, is_open=True)
    return InsidePlaces(inside.env["HOME"], inside.cwd)


def prepare(
    session: Session,
    capsule: CapsuleRecord,
    adapter: str,
    spec: AdapterSpec,
    chosen: ChosenLogin | None,
) -> InsideLogin:
    """Grants the login, writes the agent's files, and returns the login as it is inside."""
    for rule in spec.hosts:
        rules.grant(session, capsule, rule)
    inside = _NO_LOGIN if chosen is None else logins.grant(session, capsule, adapter, chosen)
    carried, notes = carried_files.carried(spec.carry, session.owner)
    for note in notes:
        session.warn(note)
    found = registry.home_files(spec, inside, places(session, capsule).values, carried)
    write(session, capsule, found)
    return inside


def run_before(
    session: Session,
    capsule: CapsuleRecord,
    spec: AdapterSpec,
    inside: InsideLogin,
    found: InsidePlaces,
) -> None:
    """Runs the commands that an agent needs once in a new capsule. Raises DriverError."""
    values = {**found.values, "key": inside.key}
    env = {name: filled(text, values) for name, text in spec.env.items()}
    for words in spec.commands.before:
        argv = command_line(spec.commands, words, values)
        done = internal_runs.ask(
            session, capsule, argv, env={**env, **inside.env}, timeout_s=_BEFORE_S
        )
        if done.code != 0:
            said = printable((done.stdout + done.stderr)[-500:].decode(errors="replace").strip())
            raise DriverError(f"`{argv[0]}` could not be prepared in `{capsule.name}`: {said}")


def write(session: Session, capsule: CapsuleRecord, found: Sequence[HomeFile]) -> None:
    """Writes files into the private home, as the capsule's user. Raises DriverError."""
    if not found:
        return
    done = internal_runs.ask(
        session, capsule, ("/bin/sh", "-c", _UNPACK), stdin=pack(found), limit_bytes=1 << 20
    )
    if done.code != 0:
        said = printable(done.stderr[-500:].decode(errors="replace").strip())
        raise DriverError(
            f"the files of the agent could not be written in `{capsule.name}`: {said}",
            hint=f"atoll run {capsule.name} -- ls -la '~'",
        )


def pack(found: Iterable[HomeFile]) -> bytes:
    """A tar archive of regular files that only the agent can read; scripts are executable, and
    read-only files are a guard against a mistake, since the agent owns the directory.
    """
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in found:
            entry = tarfile.TarInfo(file.path)
            entry.size = len(file.content)
            entry.mode = 0o400 if file.is_read_only else 0o600
            if file.content.startswith(b"#!"):
                entry.mode |= 0o100
            archive.addfile(entry, io.BytesIO(file.content))
    return target.getvalue()
