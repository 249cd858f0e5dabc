"""Ports as leases: found, held and written down without a gap, never handed out twice.

A port is bound exclusively while the lease is committed, so no stranger can slip in between, and
the registry keeps it from every later capsule until `rm`. The range lies below the one from which
the kernel picks ports by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from atoll.engine.session import Session
from atoll.engine.store import PortTakenError
from atoll.host import sockets
from atoll.model.errors import PrerequisiteError
from atoll.model.names import short_hash
from atoll.model.state import Capsule

FIRST, LAST = 20_000, 29_999


def lease_with_ports(
    session: Session,
    wanted: Sequence[Sequence[str]],
    commit: Callable[[list[dict[str, int]]], list[Capsule]],
) -> list[Capsule]:
    """Finds a port for each name of each capsule and hands them to `commit`, which writes the
    leases.
    """
    while True:
        held: list[sockets.HeldPort] = []
        try:
            candidates = _candidates(session)
            found = []
            for names in wanted:
                numbers = []
                for _ in names:
                    port, holder = _next_free(candidates)
                    held.append(holder)
                    numbers.append(port)
                # Ascending: the store lists ports by number, and the first one becomes `PORT`.
                found.append(dict(zip(names, sorted(numbers), strict=True)))
            return commit(found)
        except PortTakenError:
            # Another command committed the same port after we read the registry; look again.
            continue
        finally:
            for holder in held:
                holder.close()


def _candidates(session: Session) -> Iterator[int]:
    """Each home starts elsewhere in the range, so that two users of one machine seldom meet."""
    leased = session.store.leased_ports()
    span = LAST - FIRST + 1
    start = int(short_hash(str(session.home)), 16) % span
    numbers = (FIRST + (start + offset) % span for offset in range(span))
    return (number for number in numbers if number not in leased)


def _next_free(candidates: Iterator[int]) -> tuple[int, sockets.HeldPort]:
    for port in candidates:
        holder = sockets.find_hold(port)
        if holder is not None:
            return port, holder
    raise PrerequisiteError(
        f"no port between {FIRST} and {LAST} is free", hint="atoll ls, then atoll rm NAME"
    )


def variables(ports: dict[str, int]) -> dict[str, str]:
    """`ATOLL_PORT_<NAME>` for each lease, and the first one as `PORT`."""
    found = {
        f"ATOLL_PORT_{name.upper().replace('-', '_')}": str(port) for name, port in ports.items()
    }
    return {"PORT": str(next(iter(ports.values()))), **found} if ports else {}
