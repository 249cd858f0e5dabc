"""Programs that Atoll itself has to run inside of a capsule: each is a run of that capsule.

It has a minder, the capsule's walls and limits, a time and an output limit, inherits nothing, and
everything that it started is killed when it ends. It has no more rights than the most restricted
run that could have prepared what it executes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atoll.engine.enclosure import enclosures
from atoll.engine.run import freezer, runs
from atoll.engine.state.session import Session
from atoll.host.process import Completed
from atoll.model.errors import IsolationError, StateError, Unanswered
from atoll.model.state import CapsuleRecord, CapsuleState, Reason, Run, require_outcome

TIMEOUT_S = 60.0
LIMIT_BYTES = 16 << 20


def ask(  # noqa: PLR0913 - a run, and its bounds
    session: Session,
    capsule: CapsuleRecord,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    limit_bytes: int = LIMIT_BYTES,
    also_write: Sequence[str] = (),
    states: Sequence[CapsuleState] = (CapsuleState.READY,),
) -> Completed:
    """Runs a program inside to its end; any exit code is a result. Nothing of the run stays.

    Where runs of the capsule were restricted by patterns, `also_write` names what this program must
    be able to write in addition. `limit_bytes` counts standard output and standard error together.

    Raises StateError when the capsule is paused, not in one of `states`, or when there is nothing
    that the program may write; Unanswered when it takes too long, writes too much or is ended by a
    limit; IsolationError when its walls cannot be built.
    """
    freezer.require_running(capsule)
    network, common = narrowest(session, capsule)
    write = () if common is None else (*common, *also_write)
    if common is not None and not write:
        raise StateError(
            f"runs of `{capsule.name}` had different `--write` patterns, so that no hook can "
            "be run",
            hint=f"atoll run {capsule.name} -- COMMAND does it by your own choice; "
            "`commit --no-verify` needs none",
        )
    inside = enclosures.enclosure(session, capsule, is_open=True)
    if env:
        inside = inside.adding(dict(env))
    spec = runs.RunSpec(
        argv=tuple(argv),
        timeout_s=timeout_s,
        network=network,
        write=write,
        is_own=True,
    )
    with runs.temporary(session, capsule, inside, spec, states=states) as run:
        stdout, stderr = _exchange(session, run, stdin, limit_bytes)
        return _judge(runs.wait(session, run), tuple(argv), stdout, stderr)


def narrowest(
    session: Session, capsule: CapsuleRecord
) -> tuple[str | None, tuple[str, ...] | None]:
    """The network and the patterns that a program may use which the files of a capsule, and so any
    of its runs, can have prepared: those of the narrowest run. None when no run was narrowed.

    Patterns are not intersected: runs with different ones have nothing in common.
    """
    found = session.store.narrowings(capsule)
    patterns = {write for _, write in found if write}
    is_alone = any(network == "none" for network, _ in found)
    common = next(iter(patterns)) if len(patterns) == 1 else ()
    return "none" if is_alone else None, common if patterns else None


def _exchange(session: Session, run: Run, stdin: bytes, limit_bytes: int) -> tuple[bytes, bytes]:
    streams = {"out": bytearray(), "err": bytearray()}
    channel = runs.find_channel(session, run, role="foreground")
    if channel is None:
        return b"", b""
    with channel:
        channel.write(stdin)
        channel.close_input()
        left = limit_bytes
        for stream, data in channel.exchange():
            left -= len(data)
            if left < 0:
                raise Unanswered(
                    f"`{run.argv[0]}` wrote more than {limit_bytes} bytes inside of the capsule"
                )
            streams[stream] += data
    return bytes(streams["out"]), bytes(streams["err"])


def _judge(run: Run, argv: tuple[str, ...], stdout: bytes, stderr: bytes) -> Completed:
    outcome = require_outcome(run)
    match outcome.reason:
        case Reason.NO_WALLS:
            raise IsolationError(
                f"cannot create the sandbox of `{argv[0]}`: {outcome.message}",
                hint="atoll doctor",
            )
        case Reason.EXITED | Reason.SIGNALLED | Reason.NOT_STARTED:
            if outcome.message and not stderr:
                stderr = outcome.message.encode(errors="replace")
            return Completed(argv=argv, code=outcome.shell_code, stdout=stdout, stderr=stderr)
    raise Unanswered(f"`{argv[0]}` was ended inside of the capsule: {outcome.reason}")
