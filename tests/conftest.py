"""What every test may use: a clean environment, real repositories, the real program.

Law: no test sees the owner's settings, and no test leaves a process behind.
"""

from __future__ import annotations

import collections
import compileall
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from atoll.host import view_client
from matches import matching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# The shipped suites are no test modules to pytest; their assertions are rewritten, too.
pytest.register_assert_rewrite("atoll.testing.conformance")

# Machines are shared and noisy: how long an example takes says nothing.
settings.register_profile("noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("noisy")

GIT_CONFIG = """\
[user]
    name = Test Owner
    email = owner@example.org
[init]
    defaultBranch = main
[commit]
    gpgSign = false
"""
# Fixed dates make commit hashes the same in every run, so that output can be compared whole.
COMMIT_DATE = "2024-01-02T03:04:05+00:00"
SAMPLE_FILES = {
    "README.md": "# Sample\n",
    "app.py": "print('hello')\n",
    "src/calc.py": "def add(a, b):\n    return a + b\n",
    ".gitignore": "build/\n__pycache__/\n",
}


ROOT = Path(__file__).parents[1]
DIRECTORIES_OF_QUICK_TESTS = {"unit", "architecture", "snapshots"}


def pytest_configure(config: pytest.Config) -> None:
    """Compiles the sources once, so that no `atoll` process has to.

    Without this an ordinary user, who cannot write to the checkout or cannot read the bytecode
    that root wrote under a strict umask, compiles everything anew at each start of the program.
    """
    if hasattr(config, "workerinput"):
        return
    before = os.umask(0o022)
    try:
        # A checkout of another user cannot be written to: then its owner has done it.
        with contextlib.suppress(OSError):
            for cache in (ROOT / "src").rglob("__pycache__"):
                cache.chmod(0o755)
                for path in cache.iterdir():
                    path.chmod(0o644)
            compileall.compile_dir(str(ROOT / "src"), quiet=2)
    finally:
        os.umask(before)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Twice as many as there are processors: most tests wait for disks and other processes."""
    del config
    return 2 * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs real components is slow, unless it is marked as `quick`."""
    for item in items:
        kind = item.path.relative_to(Path(__file__).parent).parts[0]
        if kind not in DIRECTORIES_OF_QUICK_TESTS and item.get_closest_marker("quick") is None:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def atoll_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh ATOLL_HOME (not made yet), in an environment without the owner's settings."""
    foreign = ("ATOLL_", "GIT_")
    for name in [name for name in os.environ if name.startswith(foreign)]:
        monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    git_config = tmp_path / "gitconfig"
    git_config.write_text(GIT_CONFIG, encoding="utf-8")
    home = tmp_path / "atoll-home"
    monkeypatch.setenv("ATOLL_HOME", str(home))
    # What holds for every level is tried on the plainest one; tests of others say so.
    monkeypatch.setenv("ATOLL_LEVEL", "worktree")
    # Nor does every test need a daemon.
    monkeypatch.setenv("ATOLL_DAEMON", "off")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(git_config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    # The keyring of whoever runs the tests stays as it is.
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    return home


@pytest.fixture
def well_known_ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One test at a time takes ports of the host that have a number which everybody knows."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with (shared / "well-known-ports").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def git(atoll_home: Path) -> Callable[..., str]:
    """`git("status", "--short", cwd=path)`: runs real git and returns what it printed."""

    def run(*args: str | Path, cwd: Path, check: bool = True) -> str:
        result = subprocess.run(
            ["git", *args],
            cwd=cwd,
            env={
                **os.environ,
                "GIT_AUTHOR_DATE": COMMIT_DATE,
                "GIT_COMMITTER_DATE": COMMIT_DATE,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and result.returncode:
            pytest.fail(f"git {args} in {cwd} exited with {result.returncode}: {result.stderr}")
        return result.stdout

    return run


@pytest.fixture
def make_repo(tmp_path: Path, git: Callable[..., str]) -> Callable[..., Path]:
    """`make_repo(files={"a.txt": "…"}, name="shop")`: a repository with one commit of these files.

    With `files={}` it has no commit.
    """

    def make(files: Mapping[str, str | bytes] | None = None, name: str = "repo") -> Path:
        root = tmp_path / name
        root.mkdir(parents=True)
        git("init", "--quiet", cwd=root)
        for path, content in (SAMPLE_FILES if files is None else files).items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        if files is None or files:
            git("add", "--all", "--force", cwd=root)
            git("commit", "--quiet", "--message", "first", cwd=root)
        return root

    return make


@pytest.fixture
def repo(make_repo: Callable[..., Path], git: Callable[..., str]) -> Path:
    """A repository on `main` with a few files and two commits."""
    root = make_repo()
    with (root / "README.md").open("a", encoding="utf-8") as readme:
        readme.write("\nA project to try things on.\n")
    git("commit", "--quiet", "--all", "--message", "second", cwd=root)
    return root


@pytest.fixture
def atoll(atoll_home: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`atoll("ls", cwd=repo)`: runs the program; `check=False` lets it fail."""

    def run(
        *args: str | Path,
        cwd: Path | None = None,
        check: bool = True,
        timeout_s: float = 60,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002 - the name that subprocess gives it
        pass_fds: tuple[int, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [sys.executable, "-m", "atoll", *map(str, args)],
            cwd=cwd or tmp_path,
            env={**os.environ, **(env or {})},
            input=input or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            pass_fds=pass_fds,
            check=False,
        )
        if check and result.returncode:
            pytest.fail(
                f"atoll {args} exited with {result.returncode}\n"
                f"--- stdout\n{result.stdout}--- stderr\n{result.stderr}"
            )
        return result

    return run


@pytest.fixture
def wait_for() -> Callable[..., Any]:
    """`wait_for(lambda: port_is_open(), timeout_s=5, what="the server")`: its first true value."""

    def wait(predicate: Callable[[], Any], timeout_s: float = 60, what: str = "condition") -> Any:
        value = poll(predicate, timeout_s)
        return value or pytest.fail(f"{what}: not within {timeout_s} s")

    return wait


@pytest.fixture
def processes_with() -> Callable[[str], list[int]]:
    """`processes_with("ATOLL_CAPSULE=x")`: the pids whose environment holds that text."""
    return find_processes


@pytest.fixture
def require_tool() -> Callable[[str], str]:
    """`require_tool("strace")`: its path; without it a skip on a laptop, a failure in CI."""

    def require(name: str) -> str:
        path = shutil.which(name)
        if path:
            return path
        reason = f"needs `{name}`, which is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    return require


@pytest.fixture(autouse=True)
def no_process_left(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Fails a test whose capsules still run something when it is over."""
    yield
    if "atoll_home" in request.fixturenames:
        check_nothing_runs_in(tmp_path)
        end_views(tmp_path / "atoll-home")
        remove_groups(tmp_path / "atoll-home")


@pytest.fixture(autouse=True, scope="session")
def no_process_left_at_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The same for homes that a test made without `atoll_home`."""
    yield
    check_nothing_runs_in(tmp_path_factory.getbasetemp())


def end_views(home: Path) -> None:
    """Views end by themselves after a while; no test shall need to know how long that is."""
    for path in matching(home, "projects/*/*/keeper"):
        view_client.ask(str(path.parent), {"end": True})


def remove_groups(home: Path) -> None:
    """Homes of tests are deleted with their capsules, whose cgroups are removed here."""
    name = f"{zlib.crc32(os.fsencode(home)):08x}-*"
    places = Path("/sys/fs/cgroup")
    for group in (*matching(places, f"atoll*/{name}"), *matching(places, f"*/atoll*/{name}")):
        # Somebody is still in there: that is told elsewhere.
        with contextlib.suppress(OSError):
            group.rmdir()


def check_nothing_runs_in(directory: Path) -> None:
    """A run's environment is scrubbed, but its HOME or its working directory tell whose it is."""

    def runs() -> list[int]:
        by_environment = find_processes("ATOLL_RUN=", f"{directory}/")
        by_place = [pid for pid in find_processes("ATOLL_RUN=") if works_in(pid, directory)]
        return sorted({*by_environment, *by_place})

    if poll(lambda: not runs(), timeout_s=2):
        return
    left = {pid: command_line(pid) for pid in runs()}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left:
        pytest.fail(f"processes left behind (now killed): {left}")


def find_processes(*markers: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # Gone meanwhile, or somebody else's.
        with contextlib.suppress(OSError):
            environment = (entry / "environ").read_bytes()
            if all(os.fsencode(marker) in environment for marker in markers):
                found.append(int(entry.name))
    return sorted(found)


def works_in(pid: int, directory: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(directory)
    except OSError:
        return False


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return "(gone)"


def poll(predicate: Callable[[], Any], timeout_s: float) -> Any:
    """Returns the first true value, or the last one when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


_MOST_REASONS = 12


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    _report_warnings(terminalreporter)
    _report_skipped(terminalreporter)


def _report_warnings(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests found that deserves a second look but is no failure."""
    reports = terminalreporter.stats.get("passed", [])
    found = [text for report in reports for name, text in report.user_properties
             if name == "warning"]  # fmt: skip
    if found:
        terminalreporter.section("worth a second look", sep="-")
        for text in found:
            terminalreporter.line(text)


def _report_skipped(terminalreporter: pytest.TerminalReporter) -> None:
    """The skipped tests, by reason: one line each, the most frequent first."""
    reasons = collections.Counter(
        _reason(report) for report in terminalreporter.stats.get("skipped", [])
    )
    if not reasons:
        return
    terminalreporter.section("skipped, by reason", sep="-")
    for reason, count in reasons.most_common(_MOST_REASONS):
        terminalreporter.line(f"{count:6}  {reason}")
    rest = sum(count for _, count in reasons.most_common()[_MOST_REASONS:])
    if rest:
        terminalreporter.line(f"{rest:6}  for other reasons; pytest -rs lists all")


def _reason(report: pytest.TestReport) -> str:
    """Without what is of one test only: where it is, and which path or number it met."""
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return re.sub(r"/\S+", "PATH", str(told).removeprefix("Skipped: "))[:120]
