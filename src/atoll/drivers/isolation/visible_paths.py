"""What a sandbox sees of the machine: an allow-list, all of it read-only.

Programs and their libraries, the toolchains that the owner has installed, and a small `/etc` of
which nothing identifies the machine or its users. Everything else does not exist inside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from atoll.drivers.isolation.toolchains import VisibleToolchain
from atoll.host.programs import is_below
from atoll.model.enclosure import Copy, Link, RootEntry, Shown, TextFile

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu")
_ETC = (
    "alternatives", "ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki", "crypto-policies",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "protocols", "services",
    "mime.types", "fonts", "terminfo", "os-release", "debian_version", "lsb-release", "inputrc",
    "gai.conf", "bash.bashrc", "profile.d", "vim", "perl", "python3", "java", "maven",
    "gitattributes", "magic", "magic.mime", "rpc", "ethertypes", "shells", "xattr.conf",
    "request-key.d", "php", "texmf", "skel", "chromium.d",
)  # fmt: skip
"""What programs look for in `/etc` and is not private. Of the browsers' settings
only what Debian's launcher reads: their policies may hold a token that enrolls a machine."""
_ETC_VERSIONS = re.compile(r"python3\.\d+|ImageMagick-\d+")
_LARGE = ("ssl/certs", "pki", "fonts", "java", "texmf", "php", "maven")
_NAMES = "hosts: files dns\npasswd: files\ngroup: files\nservices: files\nprotocols: files\n"


class Person:
    """The user that a capsule's processes run as, as they see it."""

    def __init__(self, name: str, uid: int, gid: int, home: str) -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.home = home


def system(hidden: str, private: Sequence[str] = ()) -> Iterator[RootEntry]:
    """Programs and libraries; links are the same links inside. Not what is below `hidden`, and
    nothing of the `private` places.
    """
    for place in _SYSTEM:
        if os.path.lexists(place) and place != hidden:
            yield from _without(place, private)


def _without(place: str, private: Sequence[str]) -> Iterator[RootEntry]:
    """A directory, or what of it is neither private nor holds anything that is."""
    if is_below(place, private):
        return
    if os.path.islink(place):
        yield Link(place, os.readlink(place))
    elif not any(is_below(other, [place]) for other in private):
        yield Shown(place, place, is_read_only=True)
    else:
        for name in sorted(os.listdir(place)):
            yield from _without(f"{place}/{name}", private)


def settings(person: Person, host: str, resolver: str) -> Iterator[RootEntry]:
    """The `/etc`; `resolver` is its `resolv.conf`."""
    for name in (*_ETC, *sorted(filter(_ETC_VERSIONS.fullmatch, os.listdir("/etc")))):
        place = f"/etc/{name}"
        if os.path.islink(place) and not os.path.isabs(os.readlink(place)):
            yield Link(place, os.readlink(place))
        elif name in _LARGE and os.path.exists(place):
            yield Shown(place, os.path.realpath(place), is_read_only=True)
        elif os.path.exists(place):
            yield Copy(place, os.path.realpath(place))
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    users = [
        f"root:x:0:0:root:/nonexistent:{shell}",
        f"{person.name}:x:{person.uid}:{person.gid}::{person.home}:{shell}",
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false",
    ]
    groups = ["root:x:0:", f"{person.name}:x:{person.gid}:", "nogroup:x:65534:"]
    loopback = f"127.0.0.1\tlocalhost {host}\n::1\tlocalhost ip6-localhost\n"
    for name, text in (
        ("passwd", "\n".join(dict.fromkeys(users)) + "\n"),
        ("group", "\n".join(dict.fromkeys(groups)) + "\n"),
        ("hosts", loopback),
        ("hostname", f"{host}\n"),
        ("resolv.conf", resolver),
        ("nsswitch.conf", _NAMES),
        ("machine-id", ""),
    ):
        yield TextFile(f"/etc/{name}", text)


def programs(found: Iterable[VisibleToolchain]) -> list[VisibleToolchain]:
    """The toolchains outside of the system directories, without those inside others."""
    sources = {place.at: place for place in found if not is_below(place.at, _SYSTEM)}
    return [sources[at] for at in topmost(sources)]


def topmost(places: Iterable[str]) -> list[str]:
    """Sorted, without those inside others."""
    chosen: list[str] = []
    for place in sorted(set(places)):
        if not is_below(place, chosen):
            chosen.append(place)
    return chosen
