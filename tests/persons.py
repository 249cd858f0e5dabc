"""The users of Atoll in a test: root, or an ordinary user, each with their own directory.

Where root runs the tests, the user's processes live in a mount namespace in which they can reach
this checkout and its interpreter, wherever these lie. Nothing else about them is special.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from atoll.host import files
from atoll.keeper import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).parents[1]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GIT_CONFIG = (
    "[user]\n\tname = Test Owner\n\temail = owner@example.org\n[init]\n\tdefaultBranch = main\n"
)
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
ENDED_S = 20.0


def ordinary_user() -> pwd.struct_passwd:
    """Not `nobody`, which is also how a namespace shows owners that it does not know."""
    for name in ("tester", "daemon"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise LookupError("there is no ordinary user")


def open_ways(*paths: Path) -> None:
    """Lets others reach these directories, in this mount namespace only."""
    closed: dict[Path, set[Path]] = {}
    for path in {path.resolve() for path in paths}:
        above = [parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001]
        if above:
            closed.setdefault(above[0], set()).add(path)
    for cover, hidden in closed.items():
        handles = {path: os.open(path, os.O_PATH) for path in hidden}
        calls.mount("tmpfs", str(cover), "tmpfs", 0, "mode=0755")
        for path, handle in handles.items():
            path.mkdir(parents=True, exist_ok=True)
            calls.mount(f"/proc/self/fd/{handle}", str(path), "", MS_BIND | MS_REC)
            os.close(handle)


@functools.cache
def open_namespace() -> int:
    """A descriptor of the mount namespace in which an ordinary user finds what tests need."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # The child runs nothing but this, and ends without unwinding.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            calls.unshare(calls.CLONE_NEWNS)
            calls.mount("none", "/", "", MS_REC | MS_PRIVATE)
            open_ways(ROOT, Path(sys.prefix), Path(sys.base_prefix))
            os.write(writer, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b".", "no mount namespace for an ordinary user"
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


ONLY = """
import sys
from atoll.host import programs
programs.SYSTEM_DIRECTORIES = (sys.argv.pop(1),)
from atoll.__main__ import main
main()
"""


class Person:
    """`who` is `root` or `user`. Everything of theirs lies in `place`, which only they can open."""

    def __init__(self, who: str, place: Path) -> None:
        self.who = who
        self.place = place
        self.is_us = who == "root" or os.geteuid() != 0
        self.home = place / "atoll-home"
        self.env = {
            "PATH": PATH,
            "HOME": str(place / "owner"),
            "USER": who,
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "ATOLL_HOME": str(self.home),
            "ATOLL_LEVEL": "sandbox",
            "ATOLL_DAEMON": "off",
            "ATOLL_WATCH": "off",
            "XDG_CONFIG_HOME": str(place / "config"),
            "GIT_CONFIG_GLOBAL": str(place / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        }
        (place / "gitconfig").write_text(GIT_CONFIG)
        (place / "owner").mkdir()
        if not self.is_us:
            user = ordinary_user()
            for path in (place, place / "gitconfig", place / "owner"):
                os.chown(path, user.pw_uid, user.pw_gid)
        self.repo = self.make_repo()

    def preparation(
        self, cwd: Path, confined: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """For a child before it executes: it becomes this person, `confined` by what is called."""
        user = None if self.is_us else ordinary_user()
        namespace = None if self.is_us else open_namespace()

        def become() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.umask(0o022)
            if namespace is not None:
                calls.enter_namespace(namespace)
            if confined is not None:
                confined()
            if user is None:
                return
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            os.chdir(cwd)

        return become

    def _start(self, place: Path, confined: Callable[[], None] | None) -> dict[str, Any]:
        """How a child becomes this person. What is called in the child costs a copy of all of this
        process's page tables, so that nothing is where nothing has to be.
        """
        if self.is_us and confined is None and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            return {"umask": 0o022}
        return {"preexec_fn": self.preparation(place, confined)}

    def run(
        self, *argv: str | Path, cwd: Path | None = None, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """A command on the host, as this person."""
        check, env = options.pop("check", True), options.pop("env", {})
        confined = options.pop("confined", None)
        place = cwd or self.repo
        done = subprocess.run(
            [str(word) for word in argv],
            **{"text": True, "timeout": 120, "input": b"" if options.get("text") is False else "",
               **options},
            cwd=place, env={**self.env, **env}, capture_output=True, check=False,
            **self._start(place, confined),
        )  # fmt: skip
        if check and done.returncode:
            pytest.fail(
                f"{argv} exited with {done.returncode}\n"
                f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
            )
        return done

    def atoll(self, *args: str | Path, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Runs the program; with `programs`, a machine on which only these are installed."""
        if programs := options.pop("programs", None):
            return self.run(sys.executable, "-c", ONLY, programs, *args, **options)
        return self.run(sys.executable, "-m", "atoll", *args, **options)

    def sh(self, name: str, script: str, *, code: int = 0, options: tuple[str, ...] = ()) -> str:
        """What a shell in a capsule says, which must end with this code."""
        done = self.atoll("run", *options, name, "--", "sh", "-euc", script, check=False)
        assert done.returncode == code, f"{done.returncode}:\n{done.stdout}{done.stderr}"
        return str(done.stdout)

    def answer(self, *args: str | Path) -> Any:
        """The output of `--json`."""
        return json.loads(self.atoll(*args, "--json").stdout)["data"]

    def outcome(self, name: str, number: int = -1) -> dict[str, Any]:
        """How a run of a capsule ended: that with this number, or the last one."""
        runs = self.answer("show", name)["runs"]
        found = runs[number if number < 0 else number - 1]["outcome"]
        assert isinstance(found, dict), f"{name}: {runs}"
        return found

    def popen(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """The program, running, with pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", "atoll", *args],
            cwd=self.repo, env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=self.preparation(self.repo),  # noqa: PLW1509 - no threads here
        )  # fmt: skip

    def git(self, *args: str | Path, **options: Any) -> str:
        return str(self.run("git", *args, **options).stdout)

    def write(self, contents: Mapping[str, str], root: Path | None = None) -> None:
        """Files of this person's, in their checkout."""
        for name, text in contents.items():
            target = (root or self.repo) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        if not self.is_us:
            user = ordinary_user()
            self._give(root or self.repo, user.pw_uid, user.pw_gid)

    @staticmethod
    def _give(root: Path, uid: int, gid: int) -> None:
        for path in (root, *root.rglob("*")):
            os.chown(path, uid, gid, follow_symlinks=False)

    def make_repo(self, contents: Mapping[str, str] | None = None, name: str = "repo") -> Path:
        root = self.place / name
        root.mkdir(parents=True)
        self.write(contents or {"README.md": "# Sample\n", "src/calc.py": "one = 1\n"}, root)
        self.git("init", "--quiet", cwd=root)
        self.commit("first", root)
        return root

    def commit(self, message: str, root: Path | None = None) -> None:
        self.git("add", "--all", cwd=root)
        self.git("commit", "--quiet", "-m", message, cwd=root)

    def wants_daemon(self) -> None:
        """From now on one is started when it is needed; it ends with this person."""
        self.env.pop("ATOLL_DAEMON", None)

    def end(self) -> None:
        """Removes all capsules; fails when anything is left of them."""
        names = [path.name for path in self.home.glob("projects/*/*") if path.is_dir()]
        if names:
            self.atoll("rm", *names, "--force")
        if "ATOLL_DAEMON" not in self.env:
            self.atoll("daemon", "stop")
        deadline = time.monotonic() + ENDED_S
        while left := [*still_running(self.place), *self.groups()]:
            assert time.monotonic() < deadline, f"left behind: {left}"
            time.sleep(0.05)

    def end_view(self, name: str) -> None:
        """Has the holder of a capsule's view end, as it does by itself after a while."""
        [directory] = self.home.glob(f"projects/*/{name}")
        ask = "import sys; from atoll.host.view_client import ask; ask(sys.argv[1], {'end': True})"
        self.run(sys.executable, "-c", ask, directory)

    def groups(self) -> list[str]:
        """The groups of processes that were made for this person's capsules."""
        prefix = f"{zlib.crc32(os.fsencode(self.home)):08x}-"
        trees = os.walk("/sys/fs/cgroup")
        return [f"{path}/{name}" for path, names, _ in trees for name in names
                if name.startswith(prefix)]  # fmt: skip


@contextlib.contextmanager
def living(who: str, place: Path) -> Iterator[Person]:
    """A person, for as long as a test takes; what they leave is a failure."""
    place.chmod(0o700)
    person = Person(who, place)
    try:
        yield person
        person.end()
    except BaseException:
        with contextlib.suppress(Exception):
            person.end()
        raise
    finally:
        for pid in (int(line.split()[0]) for line in still_running(place)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if place.exists():
            files.remove_tree(place, within=place.parent)


def still_running(place: Path) -> list[str]:
    """What has to do with a place and is not this process; none of it is anyone else's."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in {1, os.getpid(), os.getppid()}:
            continue
        with contextlib.suppress(OSError):
            told = [(entry / name).read_bytes() for name in ("cmdline", "environ")]
            told.append(os.fsencode((entry / "cwd").readlink()))
            if any(os.fsencode(place) in text for text in told):
                found.append(f"{entry.name} {told[0].replace(bytes(1), b' ').decode()}")
    return found


def require(tool: str) -> str:
    """Its path; without it a skip on a laptop, a failure in CI."""
    path = shutil.which(tool)
    if path:
        return path
    reason = f"needs `{tool}`, which is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


as_both = pytest.mark.parametrize("person", ["root", "user"], indirect=True)

as_user = pytest.mark.parametrize(
    "person", [pytest.param("root", marks=pytest.mark.soak), "user"], indirect=True
)
"""For what does not depend on who asks: root tries it in `make soak`, too."""
