"""Attempts on the wall around the network. No packet leaves the machine: a route is enough."""

from __future__ import annotations

from atoll.engine.verify.wall_test import Wall, WallTest

WALL = Wall(
    "network",
    (
        WallTest("N01", "reach an internet address without the proxy", """
given["network"] == "open" and gave_way("it is open")
each(((socket.AF_INET, "198.51.100.9"), (socket.AF_INET6, "2001:db8::9")),
     lambda far: "by " + way_to(*far, 443))
"""),
        WallTest("N03", "connect to a service on the host's loopback over IPv4", """
given["host"]["port"] or not_tried("the host could not listen")
each(("127.0.0.1", "0.0.0.0"),
     lambda place: connect(socket.AF_INET, (place, given["host"]["port"])))
"""),
        WallTest("N03b", "connect to a service on the host's loopback over IPv6", """
given["host"]["port6"] or not_tried("the host has no IPv6")
connect(socket.AF_INET6, ("::1", given["host"]["port6"]))
gave_way("::1")
"""),
        WallTest("N03c", "use a network interface of the host", """
given["addresses"] or not_tried("the host has none")
for _, name in socket.if_nameindex():
    name == "lo" or gave_way(name)
raise OSError(errno.ENODEV, "there is only the loopback")
"""),
        WallTest("N05", "reach a cloud metadata service", """
each(((socket.AF_INET, "169.254.169.254"), (socket.AF_INET, "100.100.100.200"),
      (socket.AF_INET, "168.63.129.16"), (socket.AF_INET6, "fd00:ec2::254")),
     lambda far: far[1] + " by " + way_to(*far, 80))
"""),
        WallTest("N20", "open a raw socket", """
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
""", "lax"),
        WallTest("N20b", "capture packets", """
socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x300).close()
""", "lax"),
        WallTest("N20c", "send pings", """
def go(name):
    protocol = socket.IPPROTO_ICMP if name == "AF_INET" else socket.IPPROTO_ICMPV6
    socket.socket(getattr(socket, name), socket.SOCK_DGRAM, protocol).close()
each(("AF_INET", "AF_INET6"), go)
""", "lax"),
        WallTest("N21", "connect to a hypervisor (vsock)", """
socket.socket(40, socket.SOCK_STREAM).close()
"""),
        WallTest("N22", "configure network interfaces", """
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    with preparing():
        as_it_is = fcntl.ioctl(sock, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
    fcntl.ioctl(sock, SIOCSIFFLAGS, as_it_is)
""", "lax"),
        WallTest("N22b", "open netlink sockets for netfilter, audit and uevents", """
numbers = {"netfilter": 12, "audit": 9, "uevents": 15, "sock_diag": 4}
each(numbers, lambda name: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, numbers[name]).close())
"""),
        WallTest("N23", "use rare socket families and protocols", """
words = {"alg": (38, 5), "key": (15, 3, 2), "tipc": (30, 5), "bluetooth": (31, 3), "xdp": (44, 3),
         "rds": (21, 5), "can": (29, 3), "kcm": (41, 5), "mptcp": (2, 1, 262), "sctp": (2, 1, 132),
         "dccp": (2, 6, 33), "udplite": (2, 2, 136), "smc": (43, 1), "nfc": (39, 5)}
each(words, lambda name: socket.socket(*words[name]).close())
"""),
        WallTest("N26", "connect to a Unix socket of the host", """
connect(socket.AF_UNIX, given["host"]["socket"] or not_tried("the host could not listen"))
gave_way(given["host"]["socket"])
"""),
        WallTest("N26b", "connect to sockets of docker, D-Bus, ssh-agent and displays", """
reach(given["sockets"], os.stat)
"""),
        WallTest("N27", "connect to an abstract Unix socket of the host", """
connect(socket.AF_UNIX, given["host"]["abstract"] or not_tried("the host could not listen"))
"""),
    ),
)  # fmt: skip
