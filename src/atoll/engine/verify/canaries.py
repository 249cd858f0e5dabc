"""The targets of the attempts: planted secrets, and facts about the host.

Nothing of the owner is read. Of well-known paths only their existence and identity are passed on.
Everything that was planted is removed at the end, also after a failure.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from atoll.engine.verify import witness
from atoll.host import files, git
from atoll.host.process import launch, own_environment
from atoll.model.errors import AtollError, DriverError

Facts = dict[str, object]

VARIABLE = "VERIFY_CANARY_TOKEN"
_PATIENCE_S = 20.0
_MOST_SOCKETS = 20
_KNOWN = (
    ".ssh", ".aws", ".azure", ".config/gcloud", ".config/gh", ".config/git", ".kube", ".docker",
    ".gnupg", ".npmrc", ".pypirc", ".netrc", ".git-credentials", ".gitconfig", ".bash_history",
    ".zsh_history", ".python_history", ".mozilla", ".config/google-chrome", ".password-store",
    ".claude", ".codex", ".config/op", ".terraform.d", ".cargo/credentials.toml", ".m2", ".profile",
    ".bashrc", ".cache", ".config", ".local", ".local/share", ".local/state",
    ".local/share/keyrings", ".local/share/kwalletd", ".local/share/fish", ".local/share/atoll",
    ".lesshst", ".viminfo", ".psql_history", ".mysql_history", ".sqlite_history",
    ".node_repl_history", ".pgpass", ".my.cnf", ".s3cfg", ".boto", ".vault-token", ".oci",
    ".config/rclone", ".config/hub", ".config/chromium", ".config/Code", ".thunderbird", ".pki",
    ".gemini", ".cursor", ".var/app", ".config/atoll", ".local/share/Trash",
)  # fmt: skip
_ETC = ("shadow", "gshadow", "sudoers", "passwd", "group", "hosts", "machine-id", "resolv.conf",
        "ssh", "hostname", "crontab", "fstab")  # fmt: skip
_PLACES = ("/home", "/root", "/var/log", "/var/lib", "/boot", "/srv", "/sys", "/sys/fs/cgroup",
           "/etc", "/run", "/var", "/dev/shm", "/dev/pts")  # fmt: skip  # noqa: S108
_SOCKETS = (
    "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
    "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket",
    "/run/snapd.socket", "/run/libvirt/libvirt-sock", "/run/acpid.socket", "/run/pcscd/pcscd.comm",
    "/tmp/.X11-unix", "/run/udev/control",  # noqa: S108 - only whether it is there
)  # fmt: skip
_SOCKET_VARIABLES = ("SSH_AUTH_SOCK", "TMUX", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR")
_CREDENTIAL = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|_KEY$|CREDENTIAL|_SOCK$|AUTH")


class Planted(NamedTuple):
    """A secret; the attacker gets only its digest."""

    name: str
    secret: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def task(self, directory: str, paths: Iterable[str]) -> bytes:
        number = int.from_bytes(os.urandom(3)) + 1
        fields = {**self._asdict(), "directory": directory, "files": [*paths], "number": number}
        return json.dumps(fields).encode() + b"\n"


def plant() -> Planted:
    return Planted(f"atoll-verify-{os.urandom(5).hex()}", f"atoll-canary-{os.urandom(16).hex()}")


@contextmanager
def host_witness() -> Iterator[tuple[Planted, Facts]]:
    """A witness on the host, with a home of its own, and a variable in our own environment."""
    planted = plant()
    place = Path(tempfile.mkdtemp(prefix="atoll-verify-"))
    os.environ[VARIABLE] = planted.secret
    try:
        homelike = [place / "home" / path for path in (".ssh/id_ed25519", ".netrc", ".npmrc")]
        kept = [str(path) for path in (place / planted.name, *homelike)]
        with _started(planted, place, kept) as facts:
            yield planted, {**facts, "place": str(place)}
    finally:
        del os.environ[VARIABLE]
        files.remove_tree(place, within=place.parent)


@contextmanager
def _started(planted: Planted, place: Path, kept: list[str]) -> Iterator[Facts]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        companion = launch(
            (sys.executable, "-I", "-S", "-c", witness.PROGRAM, planted.name, str(theirs.fileno())),
            keep_fds=(theirs.fileno(),),
            env={**own_environment(), VARIABLE: planted.secret},
        )
        theirs.close()
        try:
            ours.settimeout(_PATIENCE_S)
            ours.sendall(planted.task(str(place), kept))
            yield parse_facts(lambda: ours.recv(1 << 16))
        finally:
            # Its input ends: it removes what it created, reports that, and exits.
            with suppress(OSError):
                ours.shutdown(socket.SHUT_WR)
                while ours.recv(1 << 16):
                    continue
            companion.kill()
            companion.wait()


def parse_facts(receive: Callable[[], bytes]) -> Facts:
    """The line in which a witness reports its secrets."""
    said = b""
    while not said.endswith(b"\n"):
        piece = receive()
        if not piece:
            raise DriverError(f"the test process died: {os.fsdecode(said) or 'no output'}")
        said += piece
    facts: Facts = json.loads(said)
    return facts


def describe_host(owner: Mapping[str, str]) -> Facts:
    """What of the machine and of the owner is there, by identity; nothing is opened."""
    home = owner.get("HOME", "")
    named = [owner[name].split(",")[0] for name in _SOCKET_VARIABLES if owner.get(name)]
    nodes = [f"/dev/{name}" for name in ("mem", "kmsg", "fuse", "loop-control", "net/tun", "kvm")]
    return {
        "known": identities(f"{home}/{name}" for name in _KNOWN),
        "etc": identities(f"/etc/{name}" for name in _ETC),
        "places": identities(_PLACES),
        "sockets": identities([*_SOCKETS, *named]),
        "devices": identities(nodes),
        "variables": sorted({VARIABLE, *(name for name in owner if _CREDENTIAL.search(name))}),
        "addresses": _addresses(),
    }


def identities(paths: Iterable[str]) -> list[dict[str, object]]:
    """Of those that exist: the path, and which file that is."""
    found: list[dict[str, object]] = []
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            found.append({"path": path, "identity": [status.st_dev, status.st_ino]})
    return found


def find_sockets(home: Path) -> list[str]:
    """The sockets in an Atoll home, by their paths; those of a few capsules are enough."""
    found: list[str] = []
    for pattern in ("*", "*/*", "projects/*/*/*"):
        for path in sorted(home.glob(pattern)):
            with suppress(OSError):
                found += [str(path)] if stat.S_ISSOCK(path.lstat().st_mode) else []
    return found[:_MOST_SOCKETS]


@contextmanager
def stray_object(git_dir: str, planted: Planted) -> Iterator[str | None]:
    """A secret among the objects of a repository, of which no commit knows; its id."""
    try:
        answer = git.git("hash-object", "-w", "--stdin", cwd=git_dir, stdin=planted.secret.encode())
    except AtollError:
        yield None
        return
    name = answer.text.strip()
    path = Path(git_dir, "objects", name[:2], name[2:])
    try:
        yield name
    finally:
        path.unlink(missing_ok=True)
        # Other objects may have been added there.
        with suppress(OSError):
            path.parent.rmdir()


def _addresses() -> list[str]:
    """The host's own addresses beside the loopback: no packet is sent to find them."""
    found = []
    for family, far in ((socket.AF_INET, "192.0.2.9"), (socket.AF_INET6, "2001:db8::9")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            found.append(probe.getsockname()[0])
    return found
