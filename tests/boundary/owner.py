"""A throw-away owner: a home with canaries, two projects, and an Atoll home with two capsules."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from boundary import ingredients, watch
from boundary.cases import Case
from matches import matching

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
MAX_SEARCHED_BYTES = 1 << 20
UNDER_TEST = "ATOLL_UNDER_TEST"
"""The variable that names another installation's `atoll`."""
_CANARIES = (
    "owner/.ssh/id_rsa", "owner/.local/share/keyrings/login.keyring", "owner/.bash_history",
    "sibling/secret.txt",
)  # fmt: skip
_FILES = {
    "README": "hello\n",
    "app.py": "print('hello')\n",
    "src/calc.py": "def add(a, b):\n    return a + b\n",
    ".gitignore": "build/\n.venv/bin/\n",
}
PROBE = r"""
import os, re, sys
found, seen, count = set(), set(), 0


def look(path):
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            found.update(re.findall(rb"canary-[0-9a-f]{32}", os.read(handle, 1 << 16)))
        finally:
            os.close(handle)
    except OSError:
        pass


for path in sys.argv[1:]:
    look(path)
waiting = [(".", 0), (os.path.expanduser("~"), 0)]
while waiting and count < 20000:
    place, depth = waiting.pop(0)
    try:
        real = os.path.realpath(place)
        names = os.listdir(place)
    except OSError:
        continue
    if real in seen or real.startswith(("/proc", "/usr", "/lib", "/sys", "/dev")):
        continue
    seen.add(real)
    for name in sorted(names)[:100]:
        count += 1
        path = os.path.join(place, name)
        if os.path.isdir(path):
            if depth < 4:
                waiting.append((path, depth + 1))
        else:
            look(path)
print("seen:", *sorted(one.decode() for one in found))
"""


class Owner:
    """Everything is below `place`, which goes at the end with all processes of it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.place = Path(tempfile.mkdtemp(prefix="atoll-boundary-"))
        self.token = secrets.token_hex(6)
        self.home, self.sibling = self.place / "owner", self.place / "sibling"
        self.project, self.atoll_home = self.place / "project", self.place / "atoll"
        self.markers = self.place / "markers"
        self.canaries: dict[str, Path] = {}
        self.tracers: list[subprocess.Popen[bytes]] = []
        self.number = 0
        for directory in (self.home, self.project, self.markers, self.place / "traces"):
            directory.mkdir()
        self.env = self._environment()
        self.program = self._install()
        self._plant()

    @property
    def marker(self) -> Path:
        return self.markers / "executed"

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": SYSTEM_PATH,
            "HOME": str(self.home),
            "ATOLL_HOME": str(self.atoll_home),
            "ATOLL_DAEMON": "off",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "TMPDIR": str(self.place / "traces"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **{key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ},
        }

    def activate(self) -> None:
        """From now on the project's virtual environment comes first on the owner's PATH."""
        self.env["PATH"] = f"{self.project}/.venv/bin:{self.env['PATH']}"

    def deactivate(self) -> None:
        self.env["PATH"] = self.env["PATH"].removeprefix(f"{self.project}/.venv/bin:")

    def _install(self) -> tuple[str, ...]:
        command = os.environ.get(UNDER_TEST)
        python = str(Path(command).parent / "python") if command else sys.executable
        # Once: what runs isolated from the environment would write its modules' caches when first
        # used, and so outside of the owner's place.
        ask = "import atoll, compileall; compileall.compile_dir(*atoll.__path__, quiet=2)"
        subprocess.run([python, "-P", "-c", ask], check=True, cwd="/", capture_output=True)
        if not self.case.tool:
            return (python, "-m", "atoll")
        ask = "import atoll, click, sys; print(*(m.__file__ for m in (atoll, click)), sep='\\n')"
        answer = subprocess.run(
            [python, "-P", "-c", ask], check=True, capture_output=True, text=True, cwd="/"
        ).stdout
        tool = self.home / ".local/share/uv/tools/atoll"
        subprocess.run([python, "-m", "venv", "--without-pip", tool], check=True)
        paths = "".join(f"{Path(line).parents[1]}\n" for line in answer.splitlines())
        next(tool.glob("lib/python*/site-packages")).joinpath("a.pth").write_text(paths)
        (self.home / ".local/bin").mkdir()
        (self.home / ".local/bin/atoll").symlink_to(tool / "bin/python")
        self.env["PATH"] += f":{self.home}/.local/bin"
        return (str(tool / "bin/python"), "-m", "atoll")

    def _plant(self) -> None:
        (self.home / ".gitconfig").write_text(
            "[user]\n\tname = Owner\n\temail = owner@example.org\n[init]\n\tdefaultBranch = main\n"
        )
        for name in _CANARIES:
            path = self.place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            secret = f"canary-{secrets.token_hex(16)}"
            path.write_text(f"{secret}\n")
            path.chmod(0o600)
            self.canaries[secret] = path
        for name, content in _FILES.items():
            path = self.project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        # The owner's virtual environment, as a plain `python -m venv` would have made it.
        for part in ("bin", "lib", "include"):
            (self.project / ".venv" / part).mkdir(parents=True)
        known = {
            "owner": self.home, "marker": self.marker, "sibling": self.sibling,
            "relative": str(self.home / ".local").lstrip("/"),
        }  # fmt: skip
        for name in self.case.checkout:
            for where, text in ingredients.CHECKOUT[name].items():
                place_file(self.project / where.format(**known), text.format(**known))
        for root in (self.project, self.sibling):
            for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
                subprocess.run(["git", *words], cwd=root, env=self.env, check=True)

    # --- commands

    def atoll(self, *words: str, timeout_s: float = 60) -> watch.Watched:
        """Runs one command of the owner under the watcher."""
        self.number += 1
        trace = self.place / "traces" / f"{self.number:03}"
        done = watch.watch(
            (*self.program, *words),
            cwd=self.project, env=self.env, trace=trace, timeout_s=timeout_s,
        )  # fmt: skip
        if done.tracer is not None:
            self.tracers.append(done.tracer)
        return done

    def unwatched(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """For runs that go on: those inside must not have a tracer."""
        return subprocess.run(
            [*self.program, *words], cwd=self.project, env=self.env, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip

    def script(self) -> str:
        """All that the case does inside before the owner looks."""
        lines = [
            f"export OWNER='{self.home}' SIBLING='{self.sibling}' TOKEN='{self.token}'",
            f"export MARKER='{self.marker}' GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b",
            "export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b",
            'export P="id >$MARKER"',
        ]
        for name in self.case.inside:
            script = ingredients.INSIDE[name]
            # By a shell of its own with a time limit: an earlier one may have left a pipe.
            lines += [f"timeout -k 1 15 bash <<'NEXT'\n{script}\nNEXT"]
        return "\n".join([*lines, "true"])

    def points(self) -> list[str]:
        """The ids of the project's recovery points."""
        words = ["git", "for-each-ref", "--format=%(refname:lstrip=3)", "refs/atoll/recovery"]
        done = subprocess.run(
            words, cwd=self.project, env=self.env, capture_output=True, check=False
        )
        return os.fsdecode(done.stdout).splitlines()

    # --- what must stay as it is

    def portrait(self) -> dict[str, str]:
        """Of the owner's files: what a command on a capsule must not change."""
        shown = {}
        git = self.project / ".git"
        kept = (git / "config", git / "HEAD", git / "refs/heads/main")
        trees = (self.home, self.sibling, self.project, git / "hooks", git / "info")
        for path in (*kept, *(path for tree in trees for path in walk(tree))):
            if path.is_relative_to(git) and path not in kept and path.parent.name != "hooks":
                continue
            shown[str(path.relative_to(self.place))] = describe(path)
        return shown

    def leaks(self) -> list[str]:
        """Where a canary lies that should not: in Atoll's home, or in an object of the project."""
        # By descriptors: the capsule may exchange directories and links while they are searched.
        found = []
        searched = os.fwalk(self.atoll_home, onerror=lambda _: None)
        # There is no home before the first command.
        for place, _, names, handle in searched if self.atoll_home.is_dir() else ():
            held = [name for name in names if self._holds_canary(read_small(name, handle))]
            found += [f"{Path(place, n).relative_to(self.place)} holds a canary" for n in held]
        words = ["git", "cat-file", "--batch-all-objects", "--buffer"]
        asked: dict[str, Any] = {"cwd": self.project, "env": self.env, "capture_output": True}
        listed = subprocess.run([*words, "--batch-check"], check=False, **asked).stdout.splitlines()
        small = [line.split()[0] for line in listed if int(line.split()[-1]) < MAX_SEARCHED_BYTES]
        words = ["git", "cat-file", "--batch", "--buffer"]
        content = subprocess.run(
            words, input=b"\n".join([*small, b""]), check=False, **asked
        ).stdout
        return found + ["an object of the project holds a canary"] * self._holds_canary(content)

    def _holds_canary(self, content: bytes) -> bool:
        return any(secret.encode() in content for secret in self.canaries)

    def processes(self) -> dict[int, str]:
        """Every process that belongs to this home, as its command line."""
        found = {}
        needle, own = os.fsencode(self.place), os.getpid()
        tracers = {tracer.pid for tracer in self.tracers}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in tracers | {own}:
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                facts = command + (entry / "environ").read_bytes()
                if needle in facts or self.token.encode() in facts or self._is_mounted(entry):
                    found[int(entry.name)] = os.fsdecode(command).strip()
        return found

    def _is_mounted(self, entry: Path) -> bool:
        """In a mount namespace of its own that shows our home."""
        if os.readlink(entry / "ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return False
        return os.fsencode(self.place) in (entry / "mountinfo").read_bytes()

    def remove(self) -> None:
        for tracer in self.tracers:
            watch.end(tracer)
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        groups = Path("/sys/fs/cgroup")
        for pattern in (f"atoll*/{self.group()}-*", f"*/atoll*/{self.group()}-*"):
            for group in matching(groups, pattern):
                with contextlib.suppress(OSError):
                    group.rmdir()
        subprocess.run(["chmod", "-R", "u+rwX", self.place], check=False, capture_output=True)
        shutil.rmtree(self.place, ignore_errors=True)

    def group(self) -> str:
        import zlib  # noqa: PLC0415 - only here

        return f"{zlib.crc32(os.fsencode(self.atoll_home)):08x}"


def read_small(name: str, directory: int) -> bytes:
    """The content of a regular file that is not large; nothing of any other."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(name, flags, dir_fd=directory), "rb") as stream:
            status = os.fstat(stream.fileno())
            is_searched = stat.S_ISREG(status.st_mode) and status.st_size < MAX_SEARCHED_BYTES
            return stream.read() if is_searched else b""
    except OSError:
        return b""


def place_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if text.startswith("-> "):
        path.symlink_to(text.removeprefix("-> "))
        return
    path.write_text(text)
    path.chmod(0o755 if text.startswith("#!") else 0o644)


def walk(tree: Path):
    for place, directories, names in os.walk(tree):
        yield from (Path(place, name) for name in [*directories, *names])


def describe(path: Path) -> str:
    try:
        status = path.lstat()
        if path.is_symlink():
            return f"link to {path.readlink()}"
        content = path.read_bytes() if path.is_file() else b""
    except OSError as error:
        return type(error).__name__
    return f"{status.st_mode:o} {hashlib.sha256(content).hexdigest()[:16]}"
