"""The tables of the database, as a list of migrations."""

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
"""`number` is the port that the project declares."""

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
"""`moment` says how writes were prevented during the snapshot; `write` has a run's patterns of
writable paths, and `narrowed` the network and patterns of all runs that wrote files of the
capsule."""

_CHECKOUT_PORTS = """
ALTER TABLE checkouts ADD COLUMN ports TEXT NOT NULL DEFAULT '[]';
"""
"""`ports` are those that the owner named."""

_PROJECT_GRANTS = """
CREATE TABLE project_grants (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    rule TEXT NOT NULL, granted_at REAL NOT NULL,
    PRIMARY KEY (project_id, rule)
) STRICT;
"""
"""Network rules that the owner granted to all capsules of a project."""

_PARTS = """
CREATE TABLE parts (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    snapshot INTEGER NOT NULL, part TEXT NOT NULL, payload TEXT NOT NULL,
    PRIMARY KEY (capsule_id, snapshot, part)
) STRICT;
INSERT INTO parts SELECT capsule_id, 0, kind, payload FROM leases;
INSERT INTO parts SELECT id, 0, 'browser', browser FROM capsules WHERE browser <> '';
INSERT INTO parts SELECT capsule_id, number, 'workspace', layers FROM snapshots;
INSERT INTO parts SELECT capsule_id, number, 'browser', browser FROM snapshots WHERE browser <> '';
DROP TABLE leases;
ALTER TABLE capsules DROP COLUMN browser;
ALTER TABLE snapshots DROP COLUMN layers;
ALTER TABLE snapshots DROP COLUMN browser;
"""
"""`snapshot` is the number of the snapshot, or 0 for the capsule as it is now."""

_SNAPSHOT_KIND = """
ALTER TABLE snapshots ADD COLUMN kind TEXT NOT NULL DEFAULT 'manual';
UPDATE snapshots SET kind = 'automatic' WHERE automatic;
UPDATE snapshots SET kind = 'rollback' WHERE automatic AND message LIKE 'before rollback%';
ALTER TABLE snapshots DROP COLUMN automatic;
"""
"""`kind` is a `SnapshotKind`; earlier versions recognized rollbacks by the message."""

_EVENT_TABLE = """
ALTER TABLE runs ADD COLUMN internal INTEGER NOT NULL DEFAULT 0;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL, kind TEXT NOT NULL, project_id TEXT NOT NULL,
    capsule_id INTEGER, capsule TEXT, subject TEXT NOT NULL, payload TEXT NOT NULL
) STRICT;
"""
"""Events have no foreign keys: they outlive what they are about. No number is used twice."""


def _event(  # noqa: PLR0913 - the parts of one trigger
    name: str, act: str, kind: str, subject: str, payload: str, *,
    row: str = "NEW", when: str = "1", capsule: str | None = None, project: str | None = None,
) -> str:  # fmt: skip
    """A trigger that records an event in the transaction of the change.

    By default it is about the capsule `row.capsule_id`. What goes with a removed capsule, whose row
    is gone by then, is recorded as the removal alone.
    """
    found = f"SELECT project_id, id, name FROM capsules WHERE id = {row}.capsule_id"  # noqa: S608 - our own words
    if capsule is not None:
        found = f"SELECT {capsule}"
    if project is not None:
        found = f"SELECT {project}, NULL, NULL"
    return f"""
CREATE TRIGGER event_{name} AFTER {act} WHEN {when} BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, {kind}, found.*, {subject}, {payload}
    FROM ({found}) AS found;
END;
"""  # noqa: S608 - our own words


_NEW = "NEW.project_id, NEW.id, NEW.name"
_OLD = "OLD.project_id, OLD.id, OLD.name"
_RUN = (
    "json_object('state', NEW.state, 'network', NEW.network, "
    "'reason', json_extract(NEW.outcome, '$.reason'), "
    "'exit_code', json_extract(NEW.outcome, '$.exit_code'))"
)
_LEASE = "json_object('port', {0}.port, 'number', {0}.number)"
_EVENTS = _EVENT_TABLE + "".join((
    _event("capsule_made", "INSERT ON capsules", "'capsule.' || NEW.state", "NEW.name",
           "json_object('level', NEW.level)", capsule=_NEW),
    _event("capsule_changed", "UPDATE OF state ON capsules", "'capsule.' || NEW.state", "NEW.name",
           "json_object('from', OLD.state)", capsule=_NEW, when="OLD.state <> NEW.state"),
    _event("capsule_removed", "DELETE ON capsules", "'capsule.removed'", "OLD.name",
           "json_object('from', OLD.state)", capsule=_OLD),
    _event("run_leased", "INSERT ON runs", "'run.' || NEW.state", "NEW.number", _RUN,
           when="NOT NEW.internal"),
    _event("run_changed", "UPDATE OF state ON runs", "'run.' || NEW.state", "NEW.number", _RUN,
           when="NOT NEW.internal AND OLD.state <> NEW.state"),
    _event("snapshot_taken", "INSERT ON snapshots", "'snapshot.taken'", "NEW.number",
           "json_object('kind', NEW.kind)"),
    _event("snapshot_removed", "DELETE ON snapshots", "'snapshot.removed'", "OLD.number",
           "json_object('kind', OLD.kind)", row="OLD"),
    _event("grant_added", "INSERT ON grants", "'network.allowed'", "NEW.rule", "'{}'"),
    _event("grant_dropped", "DELETE ON grants", "'network.revoked'", "OLD.rule", "'{}'",
           row="OLD"),
    _event("project_grant_added", "INSERT ON project_grants", "'network.allowed'", "NEW.rule",
           "'{}'", project="NEW.project_id"),
    _event("project_grant_dropped", "DELETE ON project_grants", "'network.revoked'", "OLD.rule",
           "'{}'", project="OLD.project_id"),
    _event("port_leased", "INSERT ON ports", "'port.leased'", "NEW.name", _LEASE.format("NEW")),
    _event("port_released", "DELETE ON ports", "'port.released'", "OLD.name",
           _LEASE.format("OLD"), row="OLD"),
    _event("checkout_made", "INSERT ON checkouts", "'port.checked-out'", "''",
           "json_object('ports', json(NEW.ports))"),
    _event("checkout_ended", "DELETE ON checkouts", "'port.checked-in'", "''",
           "json_object('ports', json(OLD.ports))", row="OLD"),
))  # fmt: skip

_ROLLBACK_TARGET = "".join((
    "ALTER TABLE snapshots ADD COLUMN target INTEGER;",
    "DROP TRIGGER event_snapshot_taken;",
    _event("snapshot_taken", "INSERT ON snapshots", "'snapshot.taken'", "NEW.number",
           "json_object('kind', NEW.kind, 'target', NEW.target)"),
    _event("automatic_changed", "UPDATE OF automatic ON capsules",
           "'snapshot.automatic-' || iif(NEW.automatic, 'on', 'off')", "''", "'{}'", capsule=_NEW,
           when="OLD.automatic <> NEW.automatic"),
))  # fmt: skip
"""`target` is the number of the snapshot that a rollback returned to."""

_SECRETS = "".join(("""
CREATE TABLE secrets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL, origin TEXT NOT NULL, delivery TEXT NOT NULL, ttl_s REAL,
    created_at REAL NOT NULL, rotated_at REAL, revision TEXT NOT NULL,
    UNIQUE (project_id, name)
) STRICT;
CREATE TABLE secret_grants (
    secret_id INTEGER NOT NULL REFERENCES secrets (id) ON DELETE CASCADE,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    placeholder TEXT NOT NULL, granted_at REAL NOT NULL, expires_at REAL, used_at REAL,
    PRIMARY KEY (secret_id, capsule_id)
) STRICT;
CREATE TABLE secret_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL, project_id TEXT NOT NULL, secret TEXT NOT NULL, capsule TEXT,
    act TEXT NOT NULL, detail TEXT NOT NULL DEFAULT ''
) STRICT;
""",
    _event("secret_granted", "INSERT ON secret_grants", "'secret.granted'",
           "(SELECT name FROM secrets WHERE id = NEW.secret_id)",
           "json_object('expires_at', NEW.expires_at)"),
    _event("secret_revoked", "DELETE ON secret_grants", "'secret.revoked'",
           "coalesce((SELECT name FROM secrets WHERE id = OLD.secret_id), '')", "'{}'", row="OLD"),
))  # fmt: skip
"""Metadata only: values are in the vault. The audit outlives what it is about."""

_AGENTS = "".join(("""
CREATE TABLE agents (
    capsule_id INTEGER PRIMARY KEY REFERENCES capsules (id) ON DELETE CASCADE,
    adapter TEXT NOT NULL, task TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    since REAL NOT NULL, created_at REAL NOT NULL
) STRICT;
CREATE TABLE agent_turns (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, run INTEGER NOT NULL, prompt TEXT NOT NULL, at REAL NOT NULL,
    verdict TEXT NOT NULL DEFAULT '', is_screen INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (capsule_id, number)
) STRICT;
CREATE TABLE model_usage (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    model TEXT NOT NULL, requests INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, cost_usd REAL,
    uncounted INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (capsule_id, model)
) STRICT;
CREATE TABLE model_traffic (
    capsule_id INTEGER PRIMARY KEY REFERENCES capsules (id) ON DELETE CASCADE,
    in_flight INTEGER NOT NULL, last_at REAL, last_status INTEGER,
    trouble TEXT NOT NULL DEFAULT '', paused_until REAL,
    held_s REAL NOT NULL DEFAULT 0, held_since REAL
) STRICT;
""",
    _event("agent_made", "INSERT ON agents", "'agent.' || NEW.state", "NEW.adapter",
           "json_object('reason', NEW.reason)"),
    _event("agent_changed", "UPDATE OF state, reason ON agents", "'agent.' || NEW.state",
           "NEW.adapter", "json_object('from', OLD.state, 'reason', NEW.reason)",
           when="OLD.state <> NEW.state OR OLD.reason <> NEW.reason"),
))  # fmt: skip
"""Usage and traffic are counted by the daemon's broker."""

_OWNERS = "(SELECT temporary FROM capsules WHERE id = NEW.capsule_id) = ''"
_TEMPORARY = "".join((
    "ALTER TABLE capsules ADD COLUMN temporary TEXT NOT NULL DEFAULT '';",
    *(f"DROP TRIGGER event_{name};" for name in (
        "capsule_made", "capsule_changed", "capsule_removed", "run_leased", "run_changed",
        "port_leased",
    )),
    _event("capsule_made", "INSERT ON capsules", "'capsule.' || NEW.state", "NEW.name",
           "json_object('level', NEW.level)", capsule=_NEW, when="NEW.temporary = ''"),
    _event("capsule_changed", "UPDATE OF state ON capsules", "'capsule.' || NEW.state", "NEW.name",
           "json_object('from', OLD.state)", capsule=_NEW,
           when="OLD.state <> NEW.state AND NEW.temporary = ''"),
    _event("capsule_removed", "DELETE ON capsules", "'capsule.removed'", "OLD.name",
           "json_object('from', OLD.state)", capsule=_OLD, when="OLD.temporary = ''"),
    _event("run_leased", "INSERT ON runs", "'run.' || NEW.state", "NEW.number", _RUN,
           when=f"NOT NEW.internal AND {_OWNERS}"),
    _event("run_changed", "UPDATE OF state ON runs", "'run.' || NEW.state", "NEW.number", _RUN,
           when=f"NOT NEW.internal AND OLD.state <> NEW.state AND {_OWNERS}"),
    _event("port_leased", "INSERT ON ports", "'port.leased'", "NEW.name", _LEASE.format("NEW"),
           when=_OWNERS),
))  # fmt: skip
"""`temporary` names the lock of the command that uses a capsule for itself; see
`engine/capsule/temporary.py`. Nothing that happens in one is an event."""

_CHECKS = "".join(("""
CREATE TABLE check_results (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    tree TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, status TEXT NOT NULL,
    at REAL NOT NULL, payload TEXT NOT NULL
) STRICT;
CREATE INDEX check_results_by_tree ON check_results (project_id, tree, digest);
""",
    _event("check_ended", "INSERT ON check_results", "'check.' || NEW.status", "NEW.name",
           "json_object('tree', NEW.tree, 'id', NEW.id)", project="NEW.project_id"),
))  # fmt: skip

_RACE = "(SELECT name FROM races WHERE id = NEW.race_id)"
_RACES = "".join(("""
CREATE TABLE races (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL, state TEXT NOT NULL, base_commit TEXT NOT NULL, winner TEXT,
    created_at REAL NOT NULL, ended_at REAL, payload TEXT NOT NULL,
    is_stopping INTEGER NOT NULL DEFAULT 0,
    UNIQUE (project_id, name)
) STRICT;
CREATE TABLE candidates (
    race_id INTEGER NOT NULL REFERENCES races (id) ON DELETE CASCADE,
    position INTEGER NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, payload TEXT NOT NULL,
    PRIMARY KEY (race_id, position), UNIQUE (race_id, name)
) STRICT;
""",
    _event("race_made", "INSERT ON races", "'race.' || NEW.state", "NEW.name",
           "json_object('base', NEW.base_commit)", project="NEW.project_id"),
    _event("race_changed", "UPDATE OF state ON races", "'race.' || NEW.state", "NEW.name",
           "json_object('from', OLD.state)", project="NEW.project_id",
           when="OLD.state <> NEW.state"),
    _event("race_picked", "UPDATE OF winner ON races", "'race.picked'", "NEW.name",
           "json_object('winner', NEW.winner)", project="NEW.project_id",
           when="NEW.winner IS NOT OLD.winner"),
    _event("race_removed", "DELETE ON races", "'race.removed'", "OLD.name", "'{}'",
           project="OLD.project_id"),
    _event("candidate_changed", "UPDATE OF state ON candidates", "'candidate.' || NEW.state",
           "NEW.name", f"json_object('race', {_RACE}, 'from', OLD.state)",
           project="(SELECT project_id FROM races WHERE id = NEW.race_id)",
           when="OLD.state <> NEW.state"),
))  # fmt: skip

_PROMOTION = "(SELECT {0} FROM promotions WHERE id = NEW.promotion_id)"
_PROMOTIONS = "".join(("""
CREATE TABLE promotions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    capsule TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL, ended_at REAL,
    payload TEXT NOT NULL
) STRICT;
CREATE TABLE promotion_steps (
    promotion_id INTEGER NOT NULL REFERENCES promotions (id) ON DELETE CASCADE,
    position INTEGER NOT NULL, stage TEXT NOT NULL, act TEXT NOT NULL, state TEXT NOT NULL,
    at REAL NOT NULL, payload TEXT NOT NULL,
    PRIMARY KEY (promotion_id, position)
) STRICT;
CREATE TABLE approvals (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    capsule TEXT NOT NULL, stage TEXT NOT NULL, tree TEXT NOT NULL, by TEXT NOT NULL,
    at REAL NOT NULL
) STRICT;
""",
    _event("promotion_made", "INSERT ON promotions", "'promotion.' || NEW.state", "NEW.capsule",
           "json_object('id', NEW.id)", project="NEW.project_id"),
    _event("promotion_changed", "UPDATE OF state ON promotions", "'promotion.' || NEW.state",
           "NEW.capsule", "json_object('id', NEW.id, 'from', OLD.state)",
           project="NEW.project_id", when="OLD.state <> NEW.state"),
    _event("step_made", "INSERT ON promotion_steps", "'promotion.step'",
           _PROMOTION.format("capsule"),
           "json_object('stage', NEW.stage, 'act', NEW.act, 'state', NEW.state)",
           project=_PROMOTION.format("project_id")),
    _event("step_changed", "UPDATE OF state ON promotion_steps", "'promotion.step'",
           _PROMOTION.format("capsule"),
           "json_object('stage', NEW.stage, 'act', NEW.act, 'state', NEW.state)",
           project=_PROMOTION.format("project_id"), when="OLD.state <> NEW.state"),
    _event("approval_given", "INSERT ON approvals", "'promotion.approved'", "NEW.capsule",
           "json_object('stage', NEW.stage, 'tree', NEW.tree)", project="NEW.project_id"),
))  # fmt: skip

_EVIDENCE = """
CREATE TABLE race_evidence (
    race_id INTEGER NOT NULL REFERENCES races (id) ON DELETE CASCADE,
    kind TEXT NOT NULL, payload TEXT NOT NULL,
    PRIMARY KEY (race_id, kind)
) STRICT;
"""

STEPS = (
    _FIRST, _SNAPSHOTS, _NETWORK, _CHECKOUTS, _BROWSER, _HELD, _CHECKOUT_PORTS, _PROJECT_GRANTS,
    _PARTS, _SNAPSHOT_KIND, _EVENTS, _ROLLBACK_TARGET, _SECRETS, _AGENTS,
    _TEMPORARY, _CHECKS, _RACES, _PROMOTIONS, _EVIDENCE,
)  # fmt: skip
"""Script n migrates version n to version n+1; version 0 is an empty file."""

VERSION = len(STEPS)


def migration(found: int) -> str:
    """The script that migrates version `found` to the current one, in one transaction."""
    return f"BEGIN IMMEDIATE; {''.join(STEPS[found:])} PRAGMA user_version = {VERSION}; COMMIT;"
