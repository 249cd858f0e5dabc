"""The tables of the store, and how an older database becomes one of today."""

from __future__ import annotations

_FIRST = """
CREATE TABLE projects (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, root TEXT NOT NULL, git_dir TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE capsules (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL, level TEXT NOT NULL, state TEXT NOT NULL,
    base_commit TEXT NOT NULL, base_ref TEXT NOT NULL, branch TEXT,
    workspace TEXT NOT NULL, directory TEXT NOT NULL, time_limit_s REAL,
    created_at REAL NOT NULL, removal TEXT,
    UNIQUE (project_id, name)
) STRICT;
CREATE TABLE leases (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    position INTEGER NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL,
    PRIMARY KEY (capsule_id, position)
) STRICT;
CREATE TABLE ports (
    port INTEGER PRIMARY KEY,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    name TEXT NOT NULL, UNIQUE (capsule_id, name)
) STRICT;
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, token TEXT NOT NULL UNIQUE, argv TEXT NOT NULL, state TEXT NOT NULL,
    background INTEGER NOT NULL, tty INTEGER NOT NULL, directory TEXT NOT NULL,
    created_at REAL NOT NULL, ended_at REAL, outcome TEXT,
    UNIQUE (capsule_id, number)
) STRICT;
CREATE TABLE trust (
    path TEXT PRIMARY KEY, digest TEXT NOT NULL, approved_at REAL NOT NULL
) STRICT;
"""

_SNAPSHOTS = """
ALTER TABLE capsules ADD COLUMN exported TEXT NOT NULL DEFAULT '[]';
ALTER TABLE capsules ADD COLUMN automatic INTEGER NOT NULL DEFAULT 0;
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, message TEXT NOT NULL, layers TEXT NOT NULL,
    automatic INTEGER NOT NULL, synced INTEGER NOT NULL, created_at REAL NOT NULL,
    UNIQUE (capsule_id, number)
) STRICT;
"""

_NETWORK = """
CREATE TABLE grants (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    rule TEXT NOT NULL, granted_at REAL NOT NULL,
    PRIMARY KEY (capsule_id, rule)
) STRICT;
ALTER TABLE runs ADD COLUMN network TEXT;
"""

_CHECKOUTS = """
ALTER TABLE ports ADD COLUMN number INTEGER;
ALTER TABLE ports ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
CREATE TABLE checkouts (
    project_id TEXT PRIMARY KEY REFERENCES projects (id) ON DELETE CASCADE,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE
) STRICT;
"""
"""`number` is the port as the project knows it."""

_BROWSER = """
ALTER TABLE capsules ADD COLUMN browser TEXT NOT NULL DEFAULT '';
ALTER TABLE snapshots ADD COLUMN browser TEXT NOT NULL DEFAULT '';
"""

_HELD = """
ALTER TABLE snapshots ADD COLUMN moment TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN write TEXT NOT NULL DEFAULT '[]';
ALTER TABLE capsules ADD COLUMN narrowed TEXT NOT NULL DEFAULT '[]';
UPDATE capsules SET narrowed = '[["none", []]]'
    WHERE id IN (SELECT capsule_id FROM runs WHERE network = 'none');
"""
"""`moment` says how it was known that nothing wrote; `write` are a run's patterns, and `narrowed`
those of all runs that a capsule's files come from, each with the network of the run."""

_CHECKOUT_PORTS = """
ALTER TABLE checkouts ADD COLUMN ports TEXT NOT NULL DEFAULT '[]';
"""
"""`ports` are those that the owner named; a checkout of an older Atoll named none."""

_PROJECT_GRANTS = """
CREATE TABLE project_grants (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    rule TEXT NOT NULL, granted_at REAL NOT NULL,
    PRIMARY KEY (project_id, rule)
) STRICT;
"""
"""What the owner lets every capsule of a project reach."""

STEPS = (
    _FIRST, _SNAPSHOTS, _NETWORK, _CHECKOUTS, _BROWSER, _HELD, _CHECKOUT_PORTS, _PROJECT_GRANTS,
)  # fmt: skip
"""Script n makes version n+1 out of version n; version 0 is an empty file."""

VERSION = len(STEPS)


def migration(found: int) -> str:
    """What makes today's database out of version `found`, whole or not at all."""
    return f"BEGIN IMMEDIATE; {''.join(STEPS[found:])} PRAGMA user_version = {VERSION}; COMMIT;"
