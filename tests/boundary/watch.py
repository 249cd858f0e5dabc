"""Runs one command under strace and reports what its host-side processes did.

A process counts as inside when bwrap made it with a PID namespace of its own, or when it descends
from such a process. Everything else is the host side, and every event of it is kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "execve,execveat,open,openat,openat2,creat,connect,clone,clone3,fork,vfork,unshare,setns,"
    "chdir,fchdir,unlink,unlinkat,rename,renameat,renameat2,symlink,symlinkat,link,linkat,mkdir,"
    "mkdirat,mknod,mknodat,chmod,fchmodat,truncate,rmdir"
)
_OPENS = ("open", "openat", "openat2", "creat")
_CHANGES = (
    "unlink", "unlinkat", "rename", "renameat", "renameat2", "symlink", "symlinkat", "link",
    "linkat", "mkdir", "mkdirat", "mknod", "mknodat", "chmod", "fchmodat", "truncate", "rmdir",
)  # fmt: skip
_FORKS = ("clone", "clone3", "fork", "vfork")
_LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?|0x[0-9a-f]+)(.*)", re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PLACE = re.compile(r"(?:AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>")
_RESULT = re.compile(r"<((?:[^>\\]|\\.)*)>")
_GRACE_S = 0.2
_POLL_S = 0.02
MAX_OUTPUT_BYTES = 32 << 20


@dataclass(frozen=True)
class Event:
    """One system call of the host side. Of those that failed, only execve and connect are kept.

    `program` is what the process ran then; `in_view` says that it had entered, or made, another
    mount namespace before.
    """

    pid: int
    call: str
    path: str
    program: str
    in_view: bool
    is_write: bool
    failed: bool
    text: str


@dataclass
class Watched:
    """What one command did. `code` is None when it did not end in time."""

    argv: tuple[str, ...]
    code: int | None
    output: bytes
    took_s: float
    peak_bytes: int
    events: list[Event] = field(default_factory=list)
    tracer: subprocess.Popen[bytes] | None = None


def watch(
    argv: tuple[str, ...], *, cwd: Path, env: dict[str, str], trace: Path, timeout_s: float
) -> Watched:
    """Runs `argv` to its end. When it leaves processes, `tracer` lives until they have ended."""
    said = trace.with_suffix(".out")
    strace = (
        "strace", "-f", "--seccomp-bpf", "-y", "-s", "256", "-e", "signal=none",
        "-e", f"trace={CALLS}", "-o", str(trace), "--", *argv,
    )  # fmt: skip
    started = time.monotonic()
    with said.open("wb") as output:
        tracer = subprocess.Popen(
            strace, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    end, peak = _await(tracer, trace, started + timeout_s)
    took_s = time.monotonic() - started
    with contextlib.suppress(subprocess.TimeoutExpired):
        tracer.wait(_GRACE_S if end is not None else 0)
    with said.open("rb") as output:
        text = output.read(MAX_OUTPUT_BYTES + 1)
    lines = trace.read_text(encoding="utf-8", errors="replace")
    lives = tracer.poll() is None
    return Watched(argv, end, text, took_s, peak, parse(lines, str(cwd)), tracer if lives else None)


def _await(tracer: subprocess.Popen[bytes], trace: Path, deadline: float) -> tuple[int | None, int]:
    """The exit code of the traced command and the most memory that it was seen to have."""
    main, peak, read, rest = 0, 0, 0, b""
    while time.monotonic() < deadline:
        ended = tracer.poll() is not None
        with contextlib.suppress(OSError), trace.open("rb") as file:
            file.seek(read)
            rest += file.read()
            read = file.tell()
        *lines, rest = rest.split(b"\n")
        for line in lines:
            pid, _, what = line.partition(b" ")
            main = main or int(pid)
            if int(pid) == main and (found := re.match(rb" *\+\+\+ exited with (\d+)", what)):
                return int(found[1]), peak
            if int(pid) == main and b"+++ killed by" in what:
                return 255, peak
        if ended:
            return tracer.returncode, peak
        peak = max(peak, peak_memory(main)) if main else peak
        time.sleep(_POLL_S)
    return None, peak


def peak_memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def end(tracer: subprocess.Popen[bytes]) -> None:
    """Ends a tracer; what it still traces is killed with it, since its filter needs a tracer."""
    tracer.kill()
    tracer.wait()


@dataclass
class _Process:
    cwd: str
    program: str = ""
    in_view: bool = False


def parse(text: str, cwd: str) -> list[Event]:
    """The host side's calls of a trace, in order."""
    calls = list(_whole_calls(text))
    host = _host_pids(calls)
    known: dict[int, _Process] = {}
    events: list[Event] = []
    for pid, call, arguments, result, rest in calls:
        failed = result.startswith("-")
        if pid not in host or (failed and call not in ("execve", "connect")):
            continue
        process = known.setdefault(pid, _Process(cwd))
        if call in _FORKS and result.isdigit():
            # A child's first calls may come before its parent's line; vfork even says so.
            child = known.setdefault(int(result), _Process(process.cwd))
            child.program = child.program or process.program
            child.in_view = child.in_view or process.in_view
            continue
        if (call, True) in (("setns", "mnt:" in arguments), ("unshare", "NEWNS" in arguments)):
            process.in_view = True
        path = _path_of(call, arguments, rest, process.cwd)
        if call.startswith("execve") and not failed:
            process.program = path
        if call in ("chdir", "fchdir"):
            process.cwd = path
        wrote = call in _CHANGES or (
            call in _OPENS and any(f in arguments for f in ("O_WRONLY", "O_RDWR", "O_CREAT"))
        )
        line = f"{call}({arguments}) = {result}{rest}"[:600]
        view, program = process.in_view, process.program
        events.append(Event(pid, call, path, program, view, wrote, failed, line))
    return events


def _whole_calls(text: str):
    """(pid, call, arguments, result, rest), with interrupted lines put together."""
    begun: dict[int, str] = {}
    for line in text.splitlines():
        found = _LINE.match(line)
        if not found:
            continue
        pid, what = int(found[1]), found[2]
        if what.endswith("<unfinished ...>"):
            begun[pid] = what.removesuffix("<unfinished ...>").rstrip()
            continue
        if what.startswith("<... ") and "resumed>" in what:
            what = begun.pop(pid, "") + what.partition("resumed>")[2]
        if call := _CALL.match(what):
            yield pid, call[1], call[2], call[3], call[4]


def _host_pids(calls) -> set[int]:
    """A host process learns the PIDs of its children as strace prints them; a process inside
    learns other numbers, and so its children are never found here."""
    host: set[int] = set()
    children: dict[int, list[tuple[int, bool]]] = {}
    programs: dict[int, str] = {}
    for pid, call, arguments, result, rest in calls:
        host = host or {pid}
        if call.startswith("execve") and result == "0":
            programs[pid] = os.path.basename(_path_of(call, arguments, rest))
        if call in _FORKS and result.isdigit():
            apart = "CLONE_NEWPID" in arguments and programs.get(pid) == "bwrap"
            children.setdefault(pid, []).append((int(result), apart))
    waiting = list(host)
    while waiting:
        for child, apart in children.get(waiting.pop(), ()):
            if not apart and child not in host:
                host.add(child)
                waiting.append(child)
    return host


def _path_of(call: str, arguments: str, rest: str, cwd: str = "/") -> str:
    """The absolute path that a call was about: as it was opened, or as it was named."""
    if call in _OPENS and (found := _RESULT.match(rest)):
        return _unescape(found[1])
    if call == "connect":
        named = re.search(r'sun_path=(@?)"((?:[^"\\]|\\.)*)"', arguments)
        return named[1] + _unescape(named[2]) if named else arguments
    strings = _STRING.findall(arguments)
    if not strings:
        place = _PLACE.match(arguments)
        return _unescape(place[1]) if place else ""
    # Two names: what is made or replaced is the second.
    place, name = _PLACE.match(arguments), _unescape(strings[0])
    if call == "execve":
        return name
    if call.startswith(("rename", "link", "symlink")) and len(strings) > 1:
        places, name = list(_PLACE.finditer(arguments)), _unescape(strings[-1])
        place = places[-1] if places else None
    return os.path.normpath(os.path.join(_unescape(place[1]) if place else cwd, name))


def _unescape(text: str) -> str:
    return text.encode("latin-1", "replace").decode("unicode_escape") if "\\" in text else text
