"""Tests whether the sandbox works on this host: builds one and checks each wall from inside."""

from __future__ import annotations

import os
from pathlib import Path

from atoll.drivers.contracts import IsolationDriver, IsolationRequest
from atoll.drivers.layers.build_view import holding
from atoll.host.forkserver import ForkServer
from atoll.host.process import run
from atoll.model.enclosure import Bind, View
from atoll.model.errors import AtollError

_QUESTIONS = (
    ("a system call filter", "grep -q '^Seccomp:.2' /proc/self/status"),
    ("no new privileges", "grep -q '^NoNewPrivs:.1' /proc/self/status"),
    ("no capability", "! grep '^Cap' /proc/self/status | grep -q '[1-9a-f]$'"),
    ("a read-only root", "! touch /x 2>/dev/null"),
    ("its own process tree", "test -e /proc/$$/stat && test $$ -lt 1000"),
    ("a protected first process", "test -d /proc/1 && ! test -e /proc/1/mem"),
    ("no nested user namespace", "! unshare --user true 2>/dev/null"),
    ("a writable workspace", "echo x > f && test -s f"),
    ("a private home", 'echo x > "$HOME/f"'),
    ("only its own network", "test $(wc -l < /proc/net/dev) -eq 3"),
)  # fmt: skip
_SETTINGS = (
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)


def try_walls(driver: IsolationDriver, place: Path) -> tuple[str | None, str]:
    """`("walls", what was tried)`, or `(None, what did not hold)`."""
    pool, state, workspace = place / "layers", place / "inside" / "state", place / "workspace"
    held, objects = place / "held", place / "inside" / "objects"
    own = (pool / "state" / "home", pool / "state" / "tmp", pool / "workspace")
    for directory in (*own, state, objects, workspace, held):
        directory.mkdir(parents=True)
    plan = driver.plan(
        IsolationRequest(
            workspace=str(workspace),
            directory=str(held),
            variables={},
            author="",
            email="",
            private=str(state),
            home="/home/agent",
            is_root=os.geteuid() == 0,
            network="none",
        )
    )
    mounts = (
        Bind(str(pool / "state"), str(state)),
        Bind(str(pool / "workspace"), str(workspace)),
    )
    view = View(user=os.geteuid() != 0, pool=str(pool), mounts=mounts)
    forkserver = ForkServer(str(place))
    script = "\n".join(f"({question}) || echo '{wall}'" for wall, question in _QUESTIONS)
    try:
        with holding(forkserver, driver.extend_view(plan, view, os.environ), held) as inside:
            around = driver.enclosure(plan, os.environ)._replace(holder=inside.holder)
            answer = run(("sh", "-c", script), within=around, allowed=range(256))
    except (AtollError, OSError) as error:
        return None, str(error)
    finally:
        forkserver.close()
    if answer.code != 0:
        complaint = os.fsdecode(answer.stderr).strip().splitlines() or ["bwrap printed no message"]
        return None, complaint[-1]
    if answer.text:
        return None, "missing: " + ", ".join(answer.lines)
    return "walls", "built a sandbox and checked: " + ", ".join(wall for wall, _ in _QUESTIONS)


def find_cure() -> str | None:
    """The command that lets users have namespaces, where a setting of the kernel's forbids it."""
    for name, forbidding, allowing in _SETTINGS:
        try:
            with open("/proc/sys/" + name.replace(".", "/"), encoding="ascii") as stream:
                found = stream.read().strip()
        except OSError:
            continue
        if found == forbidding and (os.geteuid() != 0 or name.startswith("user.")):
            return f"sysctl -w {name}={allowing}"
    return None
