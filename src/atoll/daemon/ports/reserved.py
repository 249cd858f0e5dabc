"""Ports of the host that a capsule has only when its owner names them.

A program that finds such a port on the loopback trusts what answers there, and the service that
belongs there fails to start when the port is taken.
"""

from __future__ import annotations

import functools

from atoll.engine.ports import FIRST, LAST

_UNPRIVILEGED = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_PRIVILEGED_BELOW = 1024

WELL_KNOWN = {
    22: "SSH",
    25: "SMTP",
    53: "DNS",
    111: "rpcbind",
    389: "LDAP",
    631: "CUPS",
    1080: "SOCKS proxy",
    1433: "SQL Server",
    1521: "Oracle",
    1883: "MQTT",
    2049: "NFS",
    2181: "ZooKeeper",
    2375: "Docker",
    2376: "Docker",
    2379: "etcd",
    2380: "etcd",
    3128: "HTTP proxy",
    3306: "MySQL",
    3389: "RDP",
    5037: "adb",
    5353: "mDNS",
    5432: "PostgreSQL",
    5433: "PostgreSQL",
    5672: "RabbitMQ",
    5900: "VNC",
    5984: "CouchDB",
    6379: "Redis",
    6443: "Kubernetes",
    7687: "Neo4j",
    8500: "Consul",
    9042: "Cassandra",
    9092: "Kafka",
    9200: "Elasticsearch",
    9222: "browser debugging",
    9229: "Node.js debugging",
    9300: "Elasticsearch",
    10250: "Kubernetes",
    11211: "memcached",
    11434: "Ollama",
    15672: "RabbitMQ",
    27017: "MongoDB",
    27018: "MongoDB",
    27019: "MongoDB",
}
"""Services that programs of the host commonly look for on the loopback."""


@functools.cache
def first_unprivileged() -> int:
    """Read once. The kernel's limit can also be lower than 1024; that changes nothing here."""
    try:
        with open(_UNPRIVILEGED, encoding="ascii") as stream:
            return max(_PRIVILEGED_BELOW, int(stream.read()))
    except (OSError, ValueError):
        return _PRIVILEGED_BELOW


def may_bind(port: int, user_id: int) -> bool:
    """Whether the kernel lets this user listen on a free port. Not cached: sysctl can change it."""
    if user_id == 0:
        return True
    try:
        with open(_UNPRIVILEGED, encoding="ascii") as stream:
            return port >= int(stream.read())
    except (OSError, ValueError):
        return port >= _PRIVILEGED_BELOW


def find_reason(port: int) -> str | None:
    """Why the owner has to name the port; None for an ordinary one."""
    if service := WELL_KNOWN.get(port):
        return f"it is the port of {service}"
    if port < first_unprivileged():
        return "it is a privileged port"
    if FIRST <= port <= LAST:
        return "Atoll leases ports of that range"
    return None
