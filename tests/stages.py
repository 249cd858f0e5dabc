"""A small internet, a host and two capsules, for tests of what may leave a capsule.

`tight` has the mode `allow`, `wide` the mode `open`; each has nothing of a capsule but its network.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from socket import socket as Socket  # noqa: N812 - a method here is called `socket`
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from atoll.engine.network import egress_log
from atoll.keeper.networks import PROXY_PORT
from present import present
from stage import sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DIRECTOR = Path(__file__).parent / "stage" / "director.py"
PROXY = f"http://127.0.0.1:{PROXY_PORT}"
NAMES = "DNS:allowed.example,DNS:*.allowed.example,DNS:denied.example,DNS:six.example"
EXPIRED = "expired.example"
SLOW_S = 10.0


class Stage:
    def __init__(self, place: Path, pids: dict[str, int]) -> None:
        self.place = place
        self.pids = pids

    def allow(self, *rules: str, mode: str = "allow", capsule: str = "tight") -> None:
        """From now on."""
        fresh = self.place / capsule / "policy.new"
        fresh.write_text(json.dumps({"mode": mode, "texts": rules}))
        fresh.replace(self.place / capsule / "policy.json")

    def argv(self, capsule: str, *argv: object) -> list[str]:
        enter = ["nsenter", "--user", "--net", "--mount", "--preserve-credentials", "--target"]
        return [*enter, str(self.pids[capsule]), "--", *map(str, argv)]

    def run(
        self,
        *argv: object,
        capsule: str = "tight",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """In a capsule, or on the `internet`, or on the host (`exits`)."""
        return subprocess.run(
            self.argv(capsule, *argv),
            env={"PATH": os.environ["PATH"], "HOME": str(self.place), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @contextlib.contextmanager
    def restarted(self, *, before: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Kills the daemon's part, calls `before`, and has a new one while this lasts."""
        pid = self.pids["exits"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        before()
        places = [self.place / name for name in ("tight", "wide")]
        with subprocess.Popen(
            self.argv("host", sys.executable, DIRECTOR.with_name("exits.py"), *places),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as exits:
            try:
                assert present(exits.stdout).readline(), "the daemon's part did not start again"
                yield
            finally:
                exits.kill()

    def curl(self, *argv: object, capsule: str = "tight", proxy: str | None = PROXY):
        """As a program that knows its proxy, or with `proxy=None` as one that does not."""
        how = ["--noproxy", "*"] if proxy is None else ["--proxy", proxy]
        base = ["curl", "-sS", "--max-time", "20", "--cacert", self.place / "cert.pem"]
        return self.run(*base, *how, *argv, capsule=capsule)

    def socket(self, capsule: str = "tight", *, family: int = sockets.V4) -> Socket:
        (sock,) = sockets.made_in(self.place / capsule, (family, sockets.STREAM))
        sock.settimeout(SLOW_S)
        return sock

    def dial(self, capsule: str = "tight", port: int = PROXY_PORT) -> Socket:
        sock = self.socket(capsule)
        try:
            sock.connect(("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        return sock

    def speak(self, *pieces: bytes, capsule: str = "tight", port: int = PROXY_PORT) -> bytes:
        """What the proxy says to these bytes until it hangs up, or is silent for a while."""
        try:
            with self.dial(capsule, port) as sock:
                for piece in pieces:
                    sock.sendall(piece)
                return heard(sock)
        except (ConnectionResetError, BrokenPipeError):
            return b""

    def log(self, kind: str) -> list[str]:
        """What arrived on the internet."""
        file = self.place / f"{kind}.log"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def attempt(self, capsule: str = "tight", **wanted: object) -> egress_log.EgressAttempt:
        """The last one like this that has ended, once it is written down."""

        def find() -> egress_log.EgressAttempt | None:
            found = [a for a in self.attempts(capsule) if wanted.items() <= a._asdict().items()]
            found = [a for a in found if a.took_s is not None or not a.allowed]
            return max(found, key=lambda attempt: attempt.at, default=None)

        return wait_for(find)

    def attempts(self, capsule: str = "tight") -> list[egress_log.EgressAttempt]:
        return egress_log.read_attempts(self.place / capsule)


def heard(sock: socket.socket, *, quiet_s: float = 2.0) -> bytes:
    sock.settimeout(quiet_s)
    said = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while data := sock.recv(1 << 16):
            said += data
    return said


def require_tools() -> None:
    missing = [tool for tool in ("unshare", "nsenter", "ip", "curl", "openssl", "git")
               if not shutil.which(tool)]  # fmt: skip
    reason = f"needs {', '.join(missing)}" if missing else ""
    if not missing:
        probe = ["unshare", "--user", "--map-root-user", "--net", "--mount", "ip", "link", "add",
                 "a0", "type", "veth", "peer", "name", "b0"]  # fmt: skip
        result = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False)
        reason = f"needs namespaces: {result.stderr}" if result.returncode else ""
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


def make_certificate(place: Path) -> None:
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "2", "-subj", "/CN=test", "-keyout", place / "key.pem",
            "-out", place / "cert.pem", "-addext",
            f"subjectAltName={NAMES},IP:93.184.216.34,IP:2606:2800:220:1::34"]  # fmt: skip
    subprocess.run([str(part) for part in argv], check=True, capture_output=True, timeout=60)
    make_expired(place)
    # What the owner's SSL_CERT_FILE may name.
    both = (place / "cert.pem").read_bytes() + (place / "expired.pem").read_bytes()
    (place / "roots.pem").write_bytes(both)


def make_expired(place: Path) -> None:
    """A certificate whose time is over; `openssl req` makes none."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, EXPIRED)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(dt.datetime(2021, 1, 1, tzinfo=dt.UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(EXPIRED)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (place / "expired.pem").write_bytes(certificate.public_bytes(pem))
    (place / "expired-key.pem").write_bytes(key.private_bytes(pem, form, plain))


@contextlib.contextmanager
def played(place: Path, *, env: Mapping[str, str] | None = None) -> Iterator[Stage]:
    """`env`: what the owner has set for the daemon."""
    require_tools()
    place.mkdir(exist_ok=True)
    make_certificate(place)
    inherited = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    said = (place / "stderr.log").open("w+", encoding="utf-8")
    director = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--net", "--mount", "--propagation", "private",
         sys.executable, DIRECTOR, place],
        env={**inherited, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
        text=True,
    )  # fmt: skip
    try:
        line = present(director.stdout).readline()
        if not line:
            pytest.fail(f"the stage was not set:\n{Path(said.name).read_text()}")
        yield Stage(place, json.loads(line))
    finally:
        present(director.stdin).close()
        director.wait(timeout=20)
        present(director.stdout).close()
        said.close()
    # Whatever the daemon's part says there is a mistake of ours.
    assert "Traceback" not in (place / "stderr.log").read_text(), said.name


def wait_for(predicate, timeout_s: float = SLOW_S):
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert value, "waited in vain"
    return value
