"""Requests with descriptors, while their user has many in flight."""

from __future__ import annotations

import errno
import os
import resource
import socket

from atoll.keeper import requests
from children import in_child

NOBODY_ELSE = 54_321
SOFT, HARD = 64, 1024


def pair():
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_beside_others():
    resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))
    handle = os.open(os.devnull, os.O_RDONLY)
    crowded, kept = pair()
    for _ in range(2):
        socket.send_fds(crowded, [b"x"], [handle] * 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))
    near, far = pair()
    try:
        socket.send_fds(near, [b"x"], [handle])
        control: int | None = 0
    except OSError as error:
        control = error.errno
    requests.send(near, {"ping": True}, (handle,))
    request, fds = requests.receive(far)
    kept.close()
    return control, request, len(fds), resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_descriptors_in_flight_do_not_keep_a_request_back():
    user = NOBODY_ELSE if os.geteuid() == 0 else None
    # The control: without the higher limit the kernel refuses it.
    expected = (errno.ETOOMANYREFS, {"ping": True}, 1, SOFT)
    assert in_child(send_beside_others, user=user) == expected
