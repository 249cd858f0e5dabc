"""Makes all attempts of `atoll verify` where each is held and where each gets through.

    python rehearsal.py PLACE

As the user who runs it, in PLACE: at level `sandbox`; as a plain process; in throw-away namespaces
with every privilege in them; as root also in such ones with root's own. Prints one JSON object,
stage → attempt → [verdict, detail].
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

from atoll.engine.projects import Project, open_project
from atoll.engine.verify import attack, inside
from atoll.engine.verify.canaries import VARIABLE
from atoll.engine.verify.wall_test import WallFinding

PYTHON = "/usr/bin/python3"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
APART = (
    "bwrap", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-ipc",
    "--unshare-cgroup-try", "--die-with-parent", "--cap-add", "ALL", "--ro-bind", "/usr", "/usr",
    "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64",
    "/lib64", "--dir", "/etc", "--dir", "/opt", "--dir", "/var", "--proc", "/proc", "--dev", "/dev",
    "--tmpfs", "/tmp", "--",
)  # fmt: skip
# Of a network of its own: whom the kernel lets send pings there.
PINGS = ("sh", "-c", 'echo 0 0 > /proc/sys/net/ipv4/ping_group_range; exec "$0" "$@"')
STAGES = {
    "plain": (),
    "lax": ("bwrap", "--unshare-user", "--uid", "0", "--gid", "0", *APART[1:], *PINGS),
    "machine": (*APART, *PINGS),
}


def make_project(place: Path) -> Project:
    root = place / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("print('a')\n")
    os.environ["GIT_CONFIG_GLOBAL"] = str(place / "home" / ".gitconfig")
    (place / "home").mkdir()
    (place / "home" / ".gitconfig").write_text("[user]\n\tname = Owner\n\temail = owner@x.org\n")
    for words in (["init", "-qb", "main"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)
    return open_project(root, home=place / "atoll", background=False)


def run_on(stage: str, task: bytes) -> tuple[bytes, str]:
    """The attempts' program as an ordinary child, with all that we have."""
    left_open = os.open("/", os.O_RDONLY)
    env = {**os.environ, "PATH": PATH}
    done = subprocess.run(
        [*STAGES[stage], PYTHON, "-I", "-S", "-c", inside.LOADER],
        input=task, env=env, capture_output=True, check=False, pass_fds=[left_open], timeout=100,
        start_new_session=True,
    )  # fmt: skip
    os.close(left_open)
    return done.stdout, done.stderr.decode(errors="replace")[-500:]


def told(findings: list[WallFinding]) -> dict[str, list[str]]:
    return {finding.id: [finding.verdict, finding.detail] for finding in findings}


def rehearse(place: Path) -> dict[str, dict[str, list[str]]]:
    os.environ.update({"HOME": str(place / "home"), "PATH": PATH})
    project = make_project(place)
    # As if an agent with the owner's keys listened there.
    os.environ["SSH_AUTH_SOCK"] = str(place / "home" / "agent")
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(os.environ["SSH_AUTH_SOCK"])
        return attempt_everywhere(project)


def attempt_everywhere(project: Project) -> dict[str, dict[str, list[str]]]:
    walled = project.new("walled", level="sandbox")
    plain = project.new("plain", level="worktree")
    found = {
        "sandbox": told([*attack.verify(project, walled, on_progress=lambda _: None).findings])
    }
    stages = [stage for stage in STAGES if stage != "machine" or os.geteuid() == 0]
    with attack.canaries_in_place(project, plain, on_progress=lambda _: None) as given:
        assert VARIABLE in os.environ
        for stage in stages:
            found[stage] = {}
            for wall in attack.WALLS:
                found[stage] |= told(attack.attack(wall, given, partial(run_on, stage)))
    names = [capsule.name for capsule in project.capsules()]
    assert sorted(names) == ["plain", "walled"], names
    for capsule in (walled, plain):
        assert not capsule.work().any, capsule.work()
        capsule.remove()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(rehearse(Path(sys.argv[1]))))
