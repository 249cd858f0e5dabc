"""The CA of a capsule vouches for exactly the brokered hosts."""

from __future__ import annotations

import ssl
import stat

import pytest
from cryptography import x509

from atoll.daemon.broker.leaf_certificates import LeafCertificates
from atoll.daemon.broker.tls_streams import server_context
from atoll.engine.secret import broker_ca
from atoll.model.errors import StateError

HOST, SECOND = "api.example.org", "github.com"


def shake_hands(server: ssl.SSLContext, ca: bytes, name: str) -> str | None:
    """What the client says of the server's certificate; None if it is fine."""
    context = ssl.create_default_context(cadata=ca.decode())
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(back, there, server_hostname=name)
    peer = server.wrap_bio(there, back, server_side=True)
    for side in (client, peer, client, peer, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
    return None


@pytest.fixture
def forge(tmp_path, monkeypatch):
    """`forge(host)`: what a thief of the key could make."""

    def issue(host: str) -> ssl.SSLContext:
        monkeypatch.setattr(broker_ca, "_names_of", lambda _: frozenset({host}))
        return server_context(broker_ca.issue_leaf(tmp_path, host))

    return issue


def test_leaf_is_trusted_for_its_host_only(tmp_path):
    ca = broker_ca.ensure_certificate(tmp_path, [HOST, SECOND])
    leaf = LeafCertificates(tmp_path).make(HOST, [HOST, SECOND])
    assert shake_hands(leaf, ca, HOST) is None
    assert "mismatch" in (shake_hands(leaf, ca, SECOND) or "")


@pytest.mark.parametrize("host", ["evil.example", f"sub.{HOST}", f"x{HOST}", "org", "example.org"])
def test_stolen_key_can_imitate_no_other_host(tmp_path, forge, host):
    ca = broker_ca.ensure_certificate(tmp_path, [HOST, SECOND])
    assert "subtree violation" in (shake_hands(forge(host), ca, host) or "")


def test_name_below_another_brokered_name_is_permitted(tmp_path):
    names = ["example.org", HOST]
    ca = broker_ca.ensure_certificate(tmp_path, names)
    for name in names:
        assert shake_hands(LeafCertificates(tmp_path).make(name, names), ca, name) is None


def test_no_leaf_for_other_hosts(tmp_path):
    with pytest.raises(StateError, match="missing"):
        broker_ca.issue_leaf(tmp_path, HOST)
    broker_ca.ensure_certificate(tmp_path, [HOST])
    for host in (SECOND, f"sub.{HOST}", "*"):
        with pytest.raises(StateError, match="not for"):
            broker_ca.issue_leaf(tmp_path, host)
    with pytest.raises(StateError, match="at least one"):
        broker_ca.ensure_certificate(tmp_path, [])


def test_ca_is_made_anew_with_the_same_key_for_other_hosts(tmp_path):
    first = broker_ca.ensure_certificate(tmp_path, [HOST])
    assert broker_ca.ensure_certificate(tmp_path, [HOST]) == first
    second = broker_ca.ensure_certificate(tmp_path, [SECOND, HOST])
    old, new = (x509.load_pem_x509_certificate(pem) for pem in (first, second))
    assert old.public_key() == new.public_key()
    assert old.subject == new.subject
    # A process that still has the first one goes on.
    leaf = LeafCertificates(tmp_path).make(HOST, [HOST, SECOND])
    assert shake_hands(leaf, first, HOST) is None


def test_certificate_says_what_it_may_do(tmp_path):
    ca = x509.load_pem_x509_certificate(broker_ca.ensure_certificate(tmp_path, [HOST]))
    constraints = ca.extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical
    assert constraints.value.permitted_subtrees == [x509.DNSName(HOST)]
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (basic.ca, basic.path_length) == (True, 0)


def test_files_are_private(tmp_path):
    broker_ca.ensure_certificate(tmp_path, [HOST])
    directory = tmp_path / broker_ca.DIRECTORY
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(broker_ca.key_path(tmp_path).stat().st_mode) == 0o600
    assert "PRIVATE" not in repr(broker_ca.issue_leaf(tmp_path, HOST))


@pytest.mark.parametrize("name", ["ca.key", "ca.pem"])
def test_damaged_files(tmp_path, name):
    broker_ca.ensure_certificate(tmp_path, [HOST])
    (tmp_path / broker_ca.DIRECTORY / name).write_bytes(b"damaged")
    with pytest.raises(StateError, match="is damaged") as caught:
        broker_ca.ensure_certificate(tmp_path, [SECOND])
    assert (caught.value.hint or "").startswith("rm -r ")


def test_leaves_are_kept_until_the_key_is_replaced(tmp_path):
    leaves = LeafCertificates(tmp_path)
    assert leaves.find(HOST) is None
    made = leaves.make(HOST, [HOST])
    assert leaves.find(HOST) is made
    for path in (tmp_path / broker_ca.DIRECTORY).iterdir():
        path.unlink()
    assert leaves.find(HOST) is None
    broker_ca.ensure_certificate(tmp_path, [HOST])
    assert leaves.find(HOST) is None


def test_roots_of_the_owner(tmp_path):
    chosen = tmp_path / "roots.pem"
    chosen.write_bytes(b"roots")
    assert broker_ca.load_roots({"SSL_CERT_FILE": str(chosen)}) == b"roots"
    with pytest.raises(StateError, match="does not exist"):
        broker_ca.load_roots({"SSL_CERT_FILE": str(tmp_path / "none")})
