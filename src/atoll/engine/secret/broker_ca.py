"""The certificate authority of one capsule, whose certificates only that capsule trusts.

It is made when a secret is brokered for the capsule, stays outside in the capsule's directory, and
is removed with it. Its name constraints permit exactly the brokered hosts, so that a stolen key
could imitate no other. RFC 5280 lets a permitted name include all names below it; these are
excluded again with a leading dot, which OpenSSL and GnuTLS honour and other clients may not. Leaf
certificates are issued for the brokered names only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atoll.engine.state.session import Session
from atoll.host import files, locks
from atoll.model.errors import StateError
from atoll.model.state import CapsuleRecord

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, ExtensionType

DIRECTORY = "broker"
_KEY, _CERTIFICATE = "ca.key", "ca.pem"
_BUNDLE_BYTES = 4 << 20
_PEM_BYTES = 1 << 20
_CA_DAYS = 3650
LEAF_DAYS = 30
_BACKDATED = timedelta(days=1)
"""For a clock that was set back since."""
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class CaFiles(NamedTuple):
    """What a capsule gets. Nothing in it is secret."""

    ca_pem: bytes
    bundle_pem: bytes
    """The roots that the owner's programs trust, and the capsule's own CA."""


class LeafFiles(NamedTuple):
    """A certificate, and its key."""

    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return "LeafFiles(…)"


def ensure_ca(session: Session, capsule: CapsuleRecord, hosts: Iterable[str]) -> CaFiles:
    """The CA of a capsule, made if there is none, or made anew with the same key if it is for
    other hosts. Raises StateError when its files are damaged.
    """
    certificate = ensure_certificate(Path(capsule.directory), hosts)
    roots = load_roots(session.owner)
    return CaFiles(certificate, roots + b"\n" + certificate if roots else certificate)


def ensure_certificate(capsule_directory: Path, hosts: Iterable[str]) -> bytes:
    """The PEM text of a CA that is constrained to exactly these hosts."""
    names = frozenset(hosts)
    if not names:
        raise StateError("a CA needs at least one host")
    directory = capsule_directory / DIRECTORY
    files.make_private_directory(directory)
    lock = locks.Lock(directory / "lock")
    lock.acquire(wait=True)
    with lock:
        found = files.read_regular(directory / _CERTIFICATE, limit_bytes=_PEM_BYTES)
        if found is not None and _is_current(_parse_certificate(directory, found), names):
            return found
        pem = _make_certificate(_ensure_key(directory), names)
        files.write_atomic(directory / _CERTIFICATE, pem, mode=0o644)
        return pem


def issue_leaf(capsule_directory: Path, host: str) -> LeafFiles:
    """A certificate for one host, with a key of its own. Raises StateError when there is no CA, or
    when it is not for this host.
    """
    from cryptography import x509  # noqa: PLC0415 - only when a certificate is issued
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415

    directory = capsule_directory / DIRECTORY
    pem = files.read_regular(directory / _CERTIFICATE, limit_bytes=_PEM_BYTES)
    if pem is None:
        raise StateError(f"`{directory / _CERTIFICATE}` is missing")
    authority = _parse_certificate(directory, pem)
    if host not in _names_of(authority):
        raise StateError(f"the capsule's CA is not for `{host}`")
    signer, key = _load_key(directory), _new_key()
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    extensions = (
        (x509.SubjectAlternativeName([x509.DNSName(host)]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(digital_signature=True), True),
        (usages, False),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (identifier, False),
    )
    builder = (
        _builder(extensions, days=LEAF_DAYS)
        # Some clients refuse an empty subject; the alternative name is what counts.
        .subject_name(_name("atoll broker"))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
    )
    return LeafFiles(_pem(builder.sign(signer, hashes.SHA256())), _key_pem(key))


def key_path(capsule_directory: Path) -> Path:
    """Where the key of the CA is, if there is one."""
    return capsule_directory / DIRECTORY / _KEY


def load_roots(owner: Mapping[str, str]) -> bytes:
    """The PEM text of the roots that the owner's programs trust; empty when none is found.

    `SSL_CERT_FILE` in the owner's environment replaces those of the system, as it does for OpenSSL.
    Raises StateError when it cannot be read.
    """
    import ssl  # noqa: PLC0415 - only for capsules with brokered secrets

    if chosen := owner.get("SSL_CERT_FILE"):
        content = _read_bundle(chosen)
        if content is None:
            raise StateError(f"`SSL_CERT_FILE` names `{chosen}`, which does not exist")
        return content
    found = map(_read_bundle, (ssl.get_default_verify_paths().openssl_cafile, *_SYSTEM_BUNDLES))
    return next(filter(None, found), b"")


def _read_bundle(path: str) -> bytes | None:
    try:
        # The system's bundle is often a link.
        return files.read_regular(Path(os.path.realpath(path)), limit_bytes=_BUNDLE_BYTES)
    except OSError as error:
        raise StateError(f"cannot read `{path}`: {error.strerror}") from error


def _ensure_key(directory: Path) -> EllipticCurvePrivateKey:
    if not os.path.lexists(directory / _KEY):
        files.write_atomic(directory / _KEY, _key_pem(_new_key()), mode=0o600)
    return _load_key(directory)


def _load_key(directory: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        load_pem_private_key,
    )

    pem = files.read_regular(directory / _KEY, limit_bytes=_PEM_BYTES)
    try:
        key = load_pem_private_key(pem or b"", password=None)
    except (ValueError, TypeError):
        raise _damaged(directory / _KEY) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _damaged(directory / _KEY)
    return key


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - as above

    return ec.generate_private_key(ec.SECP256R1())


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _make_certificate(key: EllipticCurvePrivateKey, names: frozenset[str]) -> bytes:
    from cryptography import x509  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415

    public = key.public_key()
    extensions = (
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage(key_cert_sign=True), True),
        (_constraints(names), True),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
    )
    # The number of the key is in the name: a client finds the issuer of a leaf by name.
    subject = _name(f"Atoll capsule CA {_short_id(public.public_numbers().x)}")
    builder = (
        _builder(extensions, days=_CA_DAYS)
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
    )
    return _pem(builder.sign(key, hashes.SHA256()))


def _constraints(names: frozenset[str]) -> ExtensionType:
    import ipaddress  # noqa: PLC0415 - as above

    from cryptography import x509  # noqa: PLC0415

    every_address = [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]
    return x509.NameConstraints(
        permitted_subtrees=[x509.DNSName(name) for name in sorted(names)],
        excluded_subtrees=[
            *(x509.DNSName(f".{name}") for name in sorted(names) if not _is_parent(name, names)),
            *(x509.IPAddress(network) for network in every_address),
        ],
    )


def _is_parent(name: str, names: frozenset[str]) -> bool:
    """Whether a name below this one is permitted, so that those cannot be excluded as a whole."""
    return any(other.endswith(f".{name}") for other in names)


def _names_of(certificate: Certificate) -> frozenset[str]:
    """The hosts that a CA is for."""
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        found = certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(name.value for name in found.permitted_subtrees or ())


def _is_current(certificate: Certificate, names: frozenset[str]) -> bool:
    is_fresh = certificate.not_valid_after_utc - _now() > timedelta(days=_CA_DAYS // 2)
    return is_fresh and _names_of(certificate) == names


def _parse_certificate(directory: Path, pem: bytes) -> Certificate:
    from cryptography import x509  # noqa: PLC0415 - as above

    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise _damaged(directory / _CERTIFICATE) from None


def _damaged(path: Path) -> StateError:
    return StateError(
        f"`{path}` is damaged", hint=f"rm -r '{path.parent}', then start the capsule again"
    )


def _builder(extensions: Iterable[tuple[ExtensionType, bool]], *, days: int) -> CertificateBuilder:
    from cryptography import x509  # noqa: PLC0415 - as above

    builder = (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _BACKDATED)
        .not_valid_after(_now() + timedelta(days=days))
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return builder


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> ExtensionType:
    from cryptography import x509  # noqa: PLC0415 - as above

    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    from cryptography import x509  # noqa: PLC0415 - as above
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - as above

    return certificate.public_bytes(Encoding.PEM)


def _short_id(number: int) -> str:
    return f"{number:064x}"[:12]


def _now() -> datetime:
    return datetime.now(UTC)
