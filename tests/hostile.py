"""An owner with secrets, and hostile capsules: what the black-box attacks on the host side share.

The attacks drive the command line only. `ATOLL_UNDER_TEST=/path/to/atoll` points them at another
installation; by default they try the package that runs these tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import persons

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNDER_TEST = os.environ.get("ATOLL_UNDER_TEST")
PROGRAM = [UNDER_TEST] if UNDER_TEST else [sys.executable, "-m", "atoll"]
SYSTEM_PYTHON = "/usr/bin/python3"
TIMEOUT_S = 90
# Runs a program and reports its exit code and the largest resident size of it and its children.
METER = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
json.dump({"code": code, "peak_bytes": peak}, open(sys.argv[1], "w"))
"""
FILES = {
    "README.md": "# Sample\n",
    "src/calc.py": "one = 1\n",
    "src/more.py": "two = 2\n",
    "docs/guide.md": "# Guide\n",
    ".gitignore": "build/\n.venv/\n",
}
# What an owner does with a capsule `x` without meaning to run anything of it.
LOOKS = (
    ("show", "x"),
    ("diff", "x"),
    ("ls",),
    ("snapshot", "x", "-m", "point"),
    ("export", "x", "--all"),
    ("fork", "x", "copy"),
    ("rollback", "x", "1"),
    ("gc",),
)
ENDINGS = (("rm", "copy", "--force"), ("rm", "x"), ("rm", "x", "--force"), ("recover",), ("ls",))


class Owner(persons.Person):
    """A person with a secret, and a directory `outside` in which an escape would leave a trace."""

    def __init__(self, who: str, place: Path) -> None:
        # A word that no other process or file of this machine holds.
        self.token = f"canary{uuid.uuid4().hex}"
        super().__init__(who, place)
        self.outside = place / "outside"
        self.secrets = place / "owner" / ".ssh"
        self.ran = self.outside / "ran"
        self.outside.mkdir()
        self.write({"id_rsa": f"{self.token}\n"}, self.secrets)
        (self.secrets / "id_rsa").chmod(0o600)
        self.write({}, self.outside)

    def make_repo(self, contents: Any = None, name: str = "repo") -> Path:
        return super().make_repo(contents or FILES, name)

    def run(self, *argv: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
        return super().run(*argv, **{"timeout": TIMEOUT_S, "errors": "replace", **options})

    def atoll(self, *args: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
        return self.run(*PROGRAM, *args, **options)

    def popen(self, *args: str, env: Any = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*PROGRAM, *args],
            cwd=self.repo, env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=self.preparation(self.repo),  # noqa: PLW1509 - no threads here
        )  # fmt: skip

    def end(self) -> None:
        """Removes all capsules; fails when a process or a cgroup is left of them."""
        done = self.atoll("ls", "--json", check=False)
        names = (
            [one["name"] for one in json.loads(done.stdout)["data"]] if not done.returncode else []
        )
        if names:
            self.atoll("rm", *names, "--force")
        left: list[str] = []

        def is_over() -> bool:
            left[:] = [*persons.still_running(self.place), *self.groups()]
            return not left

        assert wait_for(is_over), f"left behind: {left}"

    def inside(self, script: str, name: str = "x", *options: str, check: bool = True) -> str:
        """What a shell in a capsule prints; the script is its standard input, of any length."""
        done = self.atoll("run", *options, name, "--", "bash", "-s", input=script, check=check)
        return str(done.stdout)

    def inside_python(self, script: str, name: str = "x", *, check: bool = True) -> str:
        done = self.atoll("run", name, "--", SYSTEM_PYTHON, "-", input=script, check=check)
        return str(done.stdout)

    def look(self, *verbs: tuple[str, ...]) -> str:
        """Runs verbs, which may refuse but neither hang nor crash; returns all that they print."""
        said = []
        for words in verbs:
            done = self.atoll(*words, check=False)
            said.append(done.stdout + done.stderr)
            assert done.returncode in {0, 1, 2, 3, 4, 5, 6}, f"{words}: {done.returncode}{said[-1]}"
            assert "Traceback" not in said[-1], f"{words}: {said[-1]}"
        return "\n".join(said)

    def peak_bytes(self, *args: str) -> int:
        """The largest resident size among the processes of one command of Atoll."""
        report = self.place / f"meter-{uuid.uuid4().hex}"
        self.run(sys.executable, "-c", METER, report, *PROGRAM, *args)
        return int(json.loads(report.read_text())["peak_bytes"])

    def traces(self) -> str:
        """What escaped programs have left outside."""
        return self.ran.read_text() if self.ran.exists() else ""

    def traces_inside(self, name: str = "x") -> str:
        """What planted programs have left inside."""
        return self.inside(f"cat {shlex.quote(str(self.ran))} 2>/dev/null; true", name)

    def recorder(self, label: str, ran: Path | None = None) -> str:
        """A shell command that leaves a trace where it runs: outside, or at that path inside."""
        target = ran or self.ran
        return f"(mkdir -p {target.parent}; echo {label} >>{target}) 2>/dev/null"

    def host_path(self, name: str) -> Path:
        """Where on the host a file that an agent made lies; agents may learn or guess it."""
        found = [Path(top, name) for top, dirs, files in os.walk(self.home)
                 if name in dirs or name in files]  # fmt: skip
        assert found, f"`{name}` is nowhere in Atoll's home"
        return found[0]

    def comes_out(self, text: str, branch: str = "atoll/x") -> bool:
        """Whether a file with exactly this text is in any commit of an exported branch."""
        blob = self.run("git", "hash-object", "--stdin", input=text).stdout.strip()
        known = self.run("git", "rev-list", "--objects", branch, check=False).stdout
        return any(line.split()[0] == blob for line in known.splitlines())

    def with_token(self, token: str) -> list[int]:
        """Processes of this machine whose command line or environment holds a word."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                texts = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
                if any(token.encode() in text for text in texts):
                    found.append(int(entry.name))
        return found


def wait_for(condition: Callable[[], Any], timeout_s: float = 20) -> Any:
    """The first true value of a condition, or its last one when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


@contextlib.contextmanager
def living(who: str) -> Iterator[Owner]:
    """An owner for one test. Ends what is left, and removes all files."""
    place = Path(tempfile.mkdtemp(prefix="atoll-hostile-"))
    place.chmod(0o700)
    owner = Owner(who, place)
    try:
        yield owner
        owner.end()
    finally:
        with contextlib.suppress(Exception):
            owner.end()
        for line in persons.still_running(place):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        # The trees of these tests have unreadable modes and absurd depths.
        subprocess.run(["chmod", "-R", "u+rwX", place], capture_output=True, check=False)
        subprocess.run(["rm", "-rf", "--one-file-system", place], capture_output=True, check=False)


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    """Who owns the host: `@as_both` for root and an ordinary user, else the one who runs this."""
    who = getattr(request, "param", "root" if os.geteuid() == 0 else "user")
    if who == "root" and os.geteuid() != 0:
        pytest.skip("only root can try what root may do")
    persons.require("bwrap")
    persons.require("git")
    with living(who) as made:
        yield made


as_both = pytest.mark.parametrize("owner", ["root", "user"], indirect=True)

as_user = pytest.mark.parametrize(
    "owner", [pytest.param("root", marks=pytest.mark.soak), "user"], indirect=True
)
"""For bounds of time and size, which do not depend on who asks: root tries them in `make soak`."""
