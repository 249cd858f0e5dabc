"""Validators of single values: functions that return the value or raise ValueError.

Messages complete a sentence that starts with the key and never repeat the value, which may be
hostile. This module does not depend on pydantic or on files.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from atoll.model.agent import AgentState
from atoll.model.names import NAME_LENGTH

_LABEL = re.compile(rf"(?=.{{1,{NAME_LENGTH}}}\Z)[a-z](?:[a-z0-9-]*[a-z0-9])?")
_PROJECT = re.compile(rf"(?=.{{1,{NAME_LENGTH}}}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OWNED_VARIABLES = frozenset({"HOME", "TMPDIR"})
_SYSTEM_VARIABLES = frozenset(
    {
        "PATH", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TERM", "LANG", "IFS", "ENV",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE",
        "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "DENO_CERT", "PIP_CERT",
    }
)  # fmt: skip
_PROXY_VARIABLES = frozenset({"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"})
# Tab and newline are ordinary in shell text. Other control characters can rewrite a terminal, and
# bidirectional controls can make an approved command look different from what runs.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_REF_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_HOST = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
    r"(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*"
)
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SECOND_LEVEL = frozenset(
    ("ac", "co", "com", "edu", "go", "gob", "gov", "ltd", "me", "mil", "ne", "net", "or", "org")
)
_PORT = re.compile(r"[0-9]{1,5}")
_EVERY_PORT = "*"
_FULL_V4_PREFIX, _FULL_V6_PREFIX = 8, 7

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# The owner's own loopback is reached as `host:PORT` only, and link-local addresses answer with
# cloud credentials: neither is ever a destination.
_CLOSED: tuple[Network, ...] = (
    ipaddress.IPv4Network("0.0.0.0/8"),
    ipaddress.IPv4Network("127.0.0.0/8"),
    ipaddress.IPv4Network("169.254.0.0/16"),
    ipaddress.IPv4Network("224.0.0.0/3"),
    ipaddress.IPv6Network("::/127"),
    ipaddress.IPv6Network("::ffff:0:0/96"),
    ipaddress.IPv6Network("64:ff9b::/96"),
    ipaddress.IPv6Network("fe80::/10"),
    ipaddress.IPv6Network("ff00::/8"),
)


def require_text(text: str) -> str:
    """Requires non-empty text of bounded length without control characters."""
    if not text.strip():
        raise ValueError("must not be empty")
    return require_plain(text)


def require_plain(text: str) -> str:
    """Requires text without control characters, which could hide part of it."""
    if len(text) > 65_536:
        raise ValueError("is too long")
    if _CONTROL.search(text):
        raise ValueError("must not contain control characters")
    return text


def require_label(text: str) -> str:
    """A name that becomes part of a host name and of a variable."""
    if not _LABEL.fullmatch(text):
        raise ValueError(
            f"is not a usable name: it takes 1 to {NAME_LENGTH} lower-case letters, digits and "
            "inner hyphens, with a letter first"
        )
    return text


def require_project_name(text: str) -> str:
    if not _PROJECT.fullmatch(text):
        raise ValueError(f"must be 1 to {NAME_LENGTH} lower-case letters, digits and inner hyphens")
    return text


def require_variable(text: str) -> str:
    """Requires the name of an environment variable that Atoll does not set."""
    if not _VARIABLE.fullmatch(text):
        raise ValueError("is not a variable name: it takes letters, digits and `_`")
    if text in _OWNED_VARIABLES or text.startswith("ATOLL_"):
        raise ValueError("is set by Atoll itself")
    return text


def require_secret_name(text: str) -> str:
    """Requires the name of a variable that neither Atoll nor the system gives a meaning."""
    require_variable(text)
    for name in (text, f"{text}_FILE"):
        is_proxy = name.lower() in _PROXY_VARIABLES
        if name in _SYSTEM_VARIABLES or is_proxy or name.startswith("LD_"):
            raise ValueError("is set by Atoll or by the system")
    return text


def require_source_variable(text: str) -> str:
    """Requires the name of an environment variable that is only read, so any is allowed."""
    if not _VARIABLE.fullmatch(text):
        raise ValueError("must be the name of a variable")
    return text


def require_ref(text: str) -> str:
    """Requires a name that git accepts as a ref and that cannot be mistaken for an option."""
    parts = text.split("/")
    bad_part = any(not p or p.startswith(".") or p.endswith((".", ".lock")) for p in parts)
    if bad_part or text[0] == "-" or text == "@" or len(text) > 255 or _CONTROL.search(text):
        raise ValueError("must be the name of a branch, tag or commit")
    if _REF_FORBIDDEN.search(text):
        raise ValueError("must be the name of a branch, tag or commit")
    return text


def require_branch(text: str) -> str:
    if text == "HEAD" or text.startswith("refs/"):
        raise ValueError("must be a branch's short name, such as `main`")
    return require_ref(text)


def require_inner_path(text: str) -> str:
    """Requires a path below the project's root and outside `.git`."""
    parts = [part for part in require_plain(text).split("/") if part not in {"", "."}]
    if text.startswith(("/", "~")) or ".." in parts:
        raise ValueError("must be a path inside the project, without `..`")
    if not parts or "\n" in text:
        raise ValueError("must be a path inside the project")
    if any(part.lower() == ".git" for part in parts):
        raise ValueError("must not be git's own directory")
    return "/".join(parts)


def require_secret_pattern(text: str) -> str:
    """Requires a pattern that adds to the list of secrets; `!` is refused."""
    if text.startswith("!"):
        raise ValueError("must not start with `!`: patterns can only be added to the list")
    if not text.strip() or text.startswith("/") or ".." in text.split("/") or "\n" in text:
        raise ValueError("must be a file name or a pattern such as `*.pem`")
    return require_plain(text)


def require_secret_path(text: str) -> str:
    """Requires a file path without `..`."""
    if not text.strip() or ".." in text.split("/") or "\n" in text:
        raise ValueError("must be the path of a file, without `..`")
    return require_plain(text)


def require_inside_file(text: str) -> str:
    """Requires a file below the home directory of a capsule: `~/…`."""
    parts = require_secret_path(text).split("/")
    if parts[0] != "~" or len(parts) < 2 or not all(parts) or "." in parts:
        raise ValueError("must be a file below the home directory, such as `~/.config/x/token`")
    return text


def require_keyring_entry(text: str) -> str:
    """Requires the service and the user of a keyring entry."""
    service, _, user = require_text(text).rpartition("/")
    if not service or not user:
        raise ValueError("must be `service/user`")
    return text


def require_url_path(text: str) -> str:
    if not re.fullmatch(r"/[!-~]{0,2047}", text):
        raise ValueError("must be a path that begins with `/`, such as `/health`")
    return text


def require_webhook(text: str) -> str:
    """Requires a URL that a message can be posted to without being read on the way."""
    mistake = ValueError(
        "must be an `https://` URL, or one of this machine's loopback, without a user name"
    )
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise mistake from None
    if not re.fullmatch(r"[!-~]{1,2048}", text) or "@" in parts.netloc or "\\" in text:
        raise mistake
    is_near = parts.scheme == "http" and host in {"127.0.0.1", "localhost"}
    if not host or not (parts.scheme == "https" or is_near):
        raise mistake
    return text


def require_model_prefix(text: str) -> str:
    if not re.fullmatch(r"[!-~]{1,100}", text):
        raise ValueError("must be the name of a model, or its beginning")
    return text


def require_agent_event(text: str) -> str:
    state = text.removeprefix("agent.")
    if state == text or state not in tuple(AgentState):
        raise ValueError("must be `agent.` and a state, such as `agent.waiting`")
    return text


def require_host(text: str) -> str:
    """Requires one host name, returned in lower case; no pattern, address or local name."""
    host = text.lower()
    labels = host.split(".")
    if not text.isascii():
        raise ValueError("must be in ASCII: write the `xn--` form of the name")
    if not _HOST.fullmatch(host) or _NUMERIC.fullmatch(labels[-1]):
        raise ValueError("must be a host name such as `api.example.org`")
    if labels[-1] == "localhost":
        raise ValueError("must not be this machine")
    return host


def require_allow_rule(text: str) -> str:
    """One destination: `host[:port]`, `*.suffix[:port]`, an address, a CIDR or `host:PORT`.

    Returns it lower-cased. The port `*` means all of them. The word `host` means the owner's
    loopback and needs one port.
    """
    place, port = _split_port(text.lower())
    if place == "host":
        if port is None or port == _EVERY_PORT:
            raise ValueError("needs a port: write `host:PORT`")
        return f"host:{port}"
    if place.startswith("*."):
        return _joined("*." + _require_suffix(place[2:]), port)
    if "*" in place:
        raise ValueError("may contain `*` only at the start, as in `*.example.org`")
    if place.startswith("[") or ":" in place or re.fullmatch(r"[0-9.]+(?:/[0-9]+)?", place):
        return _joined(_require_network(place), port)
    if place.rpartition(".")[2] == "localhost":
        raise ValueError("must not be this machine: write `host:PORT` for a port of the host")
    return _joined(require_host(place), port)


def _split_port(text: str) -> tuple[str, str | None]:
    place, colon, port = text.rpartition(":")
    bracketed = place.startswith("[") and place.endswith("]")
    if not colon or (":" in place and not bracketed) or text.endswith("]"):
        return text, None
    if port == _EVERY_PORT:
        return place, port
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65_535:
        raise ValueError("has a port that is neither a whole number from 1 to 65535 nor `*`")
    return place, str(int(port))


def _joined(place: str, port: str | None) -> str:
    return place if port is None else f"{place}:{port}"


def _require_suffix(suffix: str) -> str:
    labels = require_host(suffix).split(".")
    registry = len(labels) == 2 and len(labels[1]) == 2 and labels[0] in _SECOND_LEVEL
    if len(labels) == 1 or registry:
        raise ValueError("allows a whole top-level domain: name the sites")
    return suffix


def _require_network(place: str) -> str:
    bare = place[1:-1] if place.startswith("[") and place.endswith("]") else place
    try:
        network = ipaddress.ip_network(bare)
    except ValueError:
        raise ValueError("must be a full address or CIDR such as `10.1.0.0/16`") from None
    shortest = _FULL_V4_PREFIX if network.version == 4 else _FULL_V6_PREFIX
    if network.prefixlen < shortest:
        raise ValueError('allows too many addresses: use `network = "open"` or a longer prefix')
    if any(network.version == closed.version and network.overlaps(closed) for closed in _CLOSED):
        raise ValueError(
            "covers loopback, link-local or multicast addresses: write `host:PORT` for a port of "
            "the host"
        )
    return place


def require_port(value: object) -> int:
    return require_whole(value, lowest=1, highest=65_535)


def require_whole(value: object, *, lowest: int, highest: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest:
        return value
    raise ValueError(f"must be a whole number from {lowest} to {highest}")
