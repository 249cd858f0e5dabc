"""A keeper as the engine starts it, a client as the command line is one, and one way to wait."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import atoll.keeper
from atoll.host.programs import python_command
from atoll.keeper import log, process_tree, requests, status, wire
from atoll.keeper.status import RunStatus
from atoll.keeper.wire import MessageKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(atoll.keeper.__file__).parents[2]
PATIENCE_S = 30.0


def eventually(is_so: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """The one wait of these tests: until `is_so`, or fail."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s} s: {what}")
        time.sleep(0.005)


def is_alive(process: process_tree.TreeProcess) -> bool:
    now = process_tree.find_process(process.pid)
    return now is not None and now.start == process.start and not now.is_dead


class Client:
    """Collects what the keeper sends; `ended` is the final status."""

    def __init__(self, run_dir: Path, hello: dict[str, object] | None) -> None:
        self.sock = wire.connect(run_dir, timeout_s=PATIENCE_S)
        self.out = bytearray()
        self.err = bytearray()
        self.ended: dict[str, object] | None = None
        self.errors: list[dict[str, object]] = []
        self.is_over = False
        self._decoder = wire.Decoder()
        if hello is not None:
            self.send_json(MessageKind.HELLO, hello)

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        self.sock.sendall(wire.encode(kind, payload))

    def send_json(self, kind: MessageKind, value: dict[str, object]) -> None:
        self.sock.sendall(wire.encode_json(kind, value))

    def read_once(self, size: int = 65536) -> None:
        try:
            data = self.sock.recv(size)
        except ConnectionResetError:
            data = b""
        self.is_over = not data
        for kind, payload in self._decoder.feed(data):
            if kind is MessageKind.OUT:
                self.out += payload
            elif kind is MessageKind.ERR:
                self.err += payload
            elif kind is MessageKind.ENDED:
                self.ended = wire.parse_json(payload)
            else:
                self.errors.append(wire.parse_json(payload))

    def read_until(self, is_so: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert not self.is_over, f"the keeper hung up before: {what}"
            assert time.monotonic() < deadline, f"never: {what}"
            self.read_once()

    def read_to_end(self) -> dict[str, object]:
        self.read_until(lambda: self.ended is not None, "the end")
        assert self.ended is not None
        return self.ended

    def close(self) -> None:
        self.sock.close()


class Keeper:
    """One keeper and the run that it keeps."""

    root = ROOT
    until = staticmethod(eventually)

    def __init__(self, run_dir: Path, spec: dict[str, object]) -> None:
        self.run_dir = run_dir
        self.token = str(spec["run"])
        self.seen: list[process_tree.TreeProcess] = []
        self.clients: list[Client] = []
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(run_dir / "spec.json", os.O_WRONLY | os.O_CREAT, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            json.dump(spec, file)
        lock = os.open(run_dir / "alive", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        read, write = os.pipe()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = (str(theirs.fileno()), str(run_dir))
        argv = python_command("atoll.keeper.forkserver", *arguments, site=False)
        began = time.monotonic()
        forkserver = subprocess.Popen(
            argv, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        requests.ask(ours, {"start": str(run_dir)}, (lock, write))
        os.close(write)
        os.close(lock)
        with open(read, "rb") as news:
            self.ready = json.loads(news.readline())
        self.start_s = time.monotonic() - began
        ours.close()
        self.forkserver_exit = forkserver.wait(PATIENCE_S)
        self.minder = int(self.ready.get("pid", 0))
        self.guard = int(self.ready.get("watcher", 0))

    def client(self, role: str | None = "attach", **hello: object) -> Client:
        hello = {"role": role, **hello}
        self.clients.append(Client(self.run_dir, None if role is None else hello))
        return self.clients[-1]

    def status(self) -> RunStatus | None:
        return status.load_status(self.run_dir)

    def wait_started(self) -> int:
        eventually(lambda: (found := self.status()) is not None and found.pid, "the start")
        found = self.status()
        assert found is not None
        assert found.pid is not None
        return found.pid

    def wait_ended(self) -> RunStatus:
        eventually(self.is_unlocked, "the end of the keeper")
        found = self.status()
        assert found is not None
        assert found.state == "ended"
        return found

    def is_unlocked(self) -> bool:
        with open(self.run_dir / "alive", "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def stop(self, grace_s: float = 5.0) -> RunStatus:
        client = self.client("control")
        client.send_json(MessageKind.STOP, {"grace_s": grace_s})
        client.close()
        return self.wait_ended()

    def logged(self, stream: str = "out") -> bytes:
        return b"".join(e.data for e in log.read_log(self.run_dir) if e.stream == stream)

    def watch(self, pid: int) -> process_tree.TreeProcess:
        """Remember a process that must be gone in the end, whatever it does to hide."""
        process = process_tree.find_process(pid)
        assert process is not None, f"{pid} was gone already"
        self.seen.append(process)
        return process

    def processes(self) -> list[process_tree.TreeProcess]:
        """All that is alive of this run, the keeper's own included."""
        marks = (f"ATOLL_RUN={self.token}".encode(), os.fsencode(self.run_dir))
        found = {process.pid: process for process in self.seen if is_alive(process)}
        for name in filter(str.isdecimal, os.listdir("/proc")):
            process = process_tree.find_process(int(name))
            if process is None or process.is_dead or process.pid == os.getpid():
                continue
            try:
                environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                arguments = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marks[0] in environment or marks[1] in arguments:
                found[process.pid] = process
        return list(found.values())


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Keeper]]:
    """Start keepers; afterwards nothing of them may be left, and they are stopped if they run."""
    keepers: list[Keeper] = []

    def start(*argv: str, run_dir: Path | None = None, **changes: object) -> Keeper:
        token = uuid.uuid4().hex
        spec: dict[str, object] = {
            "run": token,
            "argv": list(argv),
            "env": {"PATH": os.environ["PATH"], "ATOLL_RUN": token, "LC_ALL": "C.UTF-8"},
            "cwd": str(tmp_path),
            "tty": False,
            "rows": 24,
            "cols": 80,
            "foreground": False,
            "stdin": "null",
            "timeout_s": None,
            "grace_s": 5.0,
            "log_limit_bytes": 1024 * 1024,
            "hold_ports": [],
        }
        spec.update(changes)
        keepers.append(Keeper(run_dir or tmp_path / f"run-{len(keepers)}", spec))
        return keepers[-1]

    yield start
    for keeper in keepers:
        for client in keeper.clients:
            client.close()
        if not keeper.is_unlocked():
            os.kill(keeper.minder, signal.SIGTERM)
            eventually(keeper.is_unlocked, "the end of the keeper after the test")
            # What it gave up on may be gone whenever somebody looks for it.
            found = keeper.status()
            assert found is None or "could not be ended" not in str(found.message)
        left = keeper.processes()
        for process in left:
            process_tree.send_signal(process, signal.SIGKILL)
        assert not left, [Path(f"/proc/{process.pid}/cmdline") for process in left]
        assert not (keeper.run_dir / "control").exists()


@pytest.fixture
def python() -> str:
    return sys.executable


@pytest.fixture
def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
