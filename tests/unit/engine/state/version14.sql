PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE agent_turns (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, run INTEGER NOT NULL, prompt TEXT NOT NULL, at REAL NOT NULL,
    verdict TEXT NOT NULL DEFAULT '', is_screen INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (capsule_id, number)
) STRICT;
INSERT INTO "agent_turns" VALUES(1,1,1,'do it',1.0,'',0);
CREATE TABLE agents (
    capsule_id INTEGER PRIMARY KEY REFERENCES capsules (id) ON DELETE CASCADE,
    adapter TEXT NOT NULL, task TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL,
    since REAL NOT NULL, created_at REAL NOT NULL
) STRICT;
INSERT INTO "agents" VALUES(1,'script','{"prompt": "do it", "model": "", "effort": "", "interactive": false, "checks": [], "budget": {"time_s": null, "turns": null, "tokens": null, "cost_usd": null}, "command": [], "commits": true, "timeout_s": null}','starting','',1.79512377110413312913e+09,1.79512377110413312913e+09);
CREATE TABLE capsules (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL, level TEXT NOT NULL, state TEXT NOT NULL,
    base_commit TEXT NOT NULL, base_ref TEXT NOT NULL, branch TEXT,
    workspace TEXT NOT NULL, directory TEXT NOT NULL, time_limit_s REAL,
    created_at REAL NOT NULL, removal TEXT, exported TEXT NOT NULL DEFAULT '[]', automatic INTEGER NOT NULL DEFAULT 0, narrowed TEXT NOT NULL DEFAULT '[]',
    UNIQUE (project_id, name)
) STRICT;
INSERT INTO "capsules" VALUES(1,'repo-2db03035','x','clone','ready','d2f8216f8ed240a5e03183ae19b9cc3dbeca6ba1','main','atoll/x','/place/repo','/place/home/projects/repo-2db03035/x',NULL,1.79498337238284087183e+09,NULL,'[]',1,'[]');
INSERT INTO "capsules" VALUES(2,'repo-2db03035','w','worktree','ready','d2f8216f8ed240a5e03183ae19b9cc3dbeca6ba1','main','atoll/w','/place/home/projects/repo-2db03035/w/workspace/w','/place/home/projects/repo-2db03035/w',NULL,1.79498337758724093434e+09,NULL,'[]',0,'[]');
CREATE TABLE checkouts (
    project_id TEXT PRIMARY KEY REFERENCES projects (id) ON DELETE CASCADE,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE
, ports TEXT NOT NULL DEFAULT '[]') STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL, kind TEXT NOT NULL, project_id TEXT NOT NULL,
    capsule_id INTEGER, capsule TEXT, subject TEXT NOT NULL, payload TEXT NOT NULL
) STRICT;
INSERT INTO "events" VALUES(1,1.79503815144200468056e+09,'network.allowed','repo-2db03035',1,'x','api.example.org','{}');
INSERT INTO "events" VALUES(2,1.79503815145298838617e+09,'network.allowed','repo-2db03035',NULL,NULL,'pypi.example.org','{}');
INSERT INTO "events" VALUES(3,1.79503815149398589139e+09,'snapshot.automatic-on','repo-2db03035',1,'x','','{}');
INSERT INTO "events" VALUES(4,1.79512377108401656152e+09,'secret.granted','repo-2db03035',1,'x','KEY','{"expires_at":null}');
INSERT INTO "events" VALUES(5,1.79512377110401248926e+09,'agent.starting','repo-2db03035',1,'x','script','{"reason":""}');
CREATE TABLE grants (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    rule TEXT NOT NULL, granted_at REAL NOT NULL,
    PRIMARY KEY (capsule_id, rule)
) STRICT;
INSERT INTO "grants" VALUES(1,'api.example.org',1.79503815144230556488e+09);
CREATE TABLE model_traffic (
    capsule_id INTEGER PRIMARY KEY REFERENCES capsules (id) ON DELETE CASCADE,
    in_flight INTEGER NOT NULL, last_at REAL, last_status INTEGER,
    trouble TEXT NOT NULL DEFAULT '', paused_until REAL,
    held_s REAL NOT NULL DEFAULT 0, held_since REAL
) STRICT;
CREATE TABLE model_usage (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    model TEXT NOT NULL, requests INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, cost_usd REAL,
    uncounted INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (capsule_id, model)
) STRICT;
CREATE TABLE parts (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    snapshot INTEGER NOT NULL, part TEXT NOT NULL, payload TEXT NOT NULL,
    PRIMARY KEY (capsule_id, snapshot, part)
) STRICT;
INSERT INTO "parts" VALUES(1,0,'workspace','{"driver": "overlay", "repository": "/place/repo/.git", "checkout": "/place/repo", "path": "/place/repo", "branch": "atoll/x", "base_commit": "d2f8216f8ed240a5e03183ae19b9cc3dbeca6ba1", "pool": "/place/home/pools/repo-2db03035", "layers": ["cec1a6b50d5f04b52", "gc74e4a6a9b350f4d", "u1db04cf86202"], "upper": "u3ed60c15aca3", "way": "privileged", "git": "gc74e4a6a9b350f4d", "disk_bytes": 0}');
INSERT INTO "parts" VALUES(1,0,'isolation','{"driver": "namespace", "workspace": "/place/repo", "private": "/place/home/pools/repo-2db03035/inside/state", "variables": {}, "author": "T", "email": "t@example.org", "seed": "/place/home/pools/repo-2db03035/layers/u1db04cf86202/tree", "holder": "/place/home/projects/repo-2db03035/x", "tools": "", "home": "", "uid": null, "network": "open", "setup_network": "", "allow": [], "limits": {}}');
INSERT INTO "parts" VALUES(2,0,'workspace','{"driver": "worktree", "repository": "/place/repo/.git", "checkout": "/place/repo", "path": "/place/home/projects/repo-2db03035/w/workspace/w", "branch": "atoll/w", "base_commit": "d2f8216f8ed240a5e03183ae19b9cc3dbeca6ba1", "pool": "", "layers": [], "upper": "", "way": "", "git": "", "disk_bytes": 0}');
INSERT INTO "parts" VALUES(2,0,'isolation','{"driver": "process", "workspace": "/place/home/projects/repo-2db03035/w/workspace/w", "private": "/place/home/projects/repo-2db03035/w/private", "variables": {}, "author": "T", "email": "t@example.org", "seed": "", "holder": "", "tools": "", "home": "", "uid": null, "network": "open", "setup_network": "", "allow": [], "limits": {}}');
INSERT INTO "parts" VALUES(1,0,'browser','chromium-5bd7b424dbee');
INSERT INTO "parts" VALUES(1,1,'workspace','["cec1a6b50d5f04b52", "gc74e4a6a9b350f4d", "u1db04cf86202"]');
INSERT INTO "parts" VALUES(1,1,'browser','chromium-b8c6721c05d8');
CREATE TABLE ports (
    port INTEGER PRIMARY KEY,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    name TEXT NOT NULL, number INTEGER, position INTEGER NOT NULL DEFAULT 0, UNIQUE (capsule_id, name)
) STRICT;
INSERT INTO "ports" VALUES(29490,1,'web',NULL,0);
INSERT INTO "ports" VALUES(29491,2,'web',NULL,0);
CREATE TABLE project_grants (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    rule TEXT NOT NULL, granted_at REAL NOT NULL,
    PRIMARY KEY (project_id, rule)
) STRICT;
INSERT INTO "project_grants" VALUES('repo-2db03035','pypi.example.org',1.79503815145349287984e+09);
CREATE TABLE projects (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, root TEXT NOT NULL, git_dir TEXT NOT NULL UNIQUE
) STRICT;
INSERT INTO "projects" VALUES('repo-2db03035','repo','/place/repo','/place/repo/.git');
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, token TEXT NOT NULL UNIQUE, argv TEXT NOT NULL, state TEXT NOT NULL,
    background INTEGER NOT NULL, tty INTEGER NOT NULL, directory TEXT NOT NULL,
    created_at REAL NOT NULL, ended_at REAL, outcome TEXT, network TEXT, write TEXT NOT NULL DEFAULT '[]', internal INTEGER NOT NULL DEFAULT 0,
    UNIQUE (capsule_id, number)
) STRICT;
INSERT INTO "runs" VALUES(1,1,1,'41675976fdba1d98','["sh", "-c", "echo one > f; echo p > $HOME/h"]','ended',0,0,'/place/home/projects/repo-2db03035/x/runs/1',1.79498337303900957107e+09,1.79498337347462606425e+09,'{"reason": "exited", "exit_code": 0, "signal": null, "message": null, "leftover": 0, "cpu_s": 0.003137, "max_rss_bytes": 10252288}',NULL,'[]',0);
INSERT INTO "runs" VALUES(2,1,2,'4d18ac8bc9754278','["sh", "-c", "echo two > f"]','ended',0,0,'/place/home/projects/repo-2db03035/x/runs/2',1.79498337586201643948e+09,1.79498337622252035136e+09,'{"reason": "exited", "exit_code": 0, "signal": null, "message": null, "leftover": 0, "cpu_s": 0.002939, "max_rss_bytes": 10203136}',NULL,'[]',0);
CREATE TABLE secret_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL, project_id TEXT NOT NULL, secret TEXT NOT NULL, capsule TEXT,
    act TEXT NOT NULL, detail TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE secret_grants (
    secret_id INTEGER NOT NULL REFERENCES secrets (id) ON DELETE CASCADE,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    placeholder TEXT NOT NULL, granted_at REAL NOT NULL, expires_at REAL, used_at REAL,
    PRIMARY KEY (secret_id, capsule_id)
) STRICT;
INSERT INTO "secret_grants" VALUES(1,1,'ph',1.79512377108455562588e+09,NULL,NULL);
CREATE TABLE secrets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL, origin TEXT NOT NULL, delivery TEXT NOT NULL, ttl_s REAL,
    created_at REAL NOT NULL, rotated_at REAL, revision TEXT NOT NULL,
    UNIQUE (project_id, name)
) STRICT;
INSERT INTO "secrets" VALUES(1,'repo-2db03035','KEY','{"kind": "typed", "of": "", "detail": ""}','{"kind": "variable", "path": "", "broker": null}',NULL,1.79512377106686973568e+09,NULL,'');
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, message TEXT NOT NULL, synced INTEGER NOT NULL, created_at REAL NOT NULL, moment TEXT NOT NULL DEFAULT '', kind TEXT NOT NULL DEFAULT 'manual', target INTEGER,
    UNIQUE (capsule_id, number)
) STRICT;
INSERT INTO "snapshots" VALUES(1,1,1,'first',0,1.79498337493339157108e+09,'nothing runs','manual',NULL);
CREATE TABLE trust (
    path TEXT PRIMARY KEY, digest TEXT NOT NULL, approved_at REAL NOT NULL
) STRICT;
CREATE TRIGGER event_capsule_made AFTER INSERT ON capsules WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'capsule.' || NEW.state, found.*, NEW.name, json_object('level', NEW.level)
    FROM (SELECT NEW.project_id, NEW.id, NEW.name) AS found;
END;
CREATE TRIGGER event_capsule_changed AFTER UPDATE OF state ON capsules WHEN OLD.state <> NEW.state BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'capsule.' || NEW.state, found.*, NEW.name, json_object('from', OLD.state)
    FROM (SELECT NEW.project_id, NEW.id, NEW.name) AS found;
END;
CREATE TRIGGER event_capsule_removed AFTER DELETE ON capsules WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'capsule.removed', found.*, OLD.name, json_object('from', OLD.state)
    FROM (SELECT OLD.project_id, OLD.id, OLD.name) AS found;
END;
CREATE TRIGGER event_run_leased AFTER INSERT ON runs WHEN NOT NEW.internal BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'run.' || NEW.state, found.*, NEW.number, json_object('state', NEW.state, 'network', NEW.network, 'reason', json_extract(NEW.outcome, '$.reason'), 'exit_code', json_extract(NEW.outcome, '$.exit_code'))
    FROM (SELECT project_id, id, name FROM capsules WHERE id = NEW.capsule_id) AS found;
END;
CREATE TRIGGER event_run_changed AFTER UPDATE OF state ON runs WHEN NOT NEW.internal AND OLD.state <> NEW.state BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'run.' || NEW.state, found.*, NEW.number, json_object('state', NEW.state, 'network', NEW.network, 'reason', json_extract(NEW.outcome, '$.reason'), 'exit_code', json_extract(NEW.outcome, '$.exit_code'))
    FROM (SELECT project_id, id, name FROM capsules WHERE id = NEW.capsule_id) AS found;
END;
CREATE TRIGGER event_snapshot_removed AFTER DELETE ON snapshots WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'snapshot.removed', found.*, OLD.number, json_object('kind', OLD.kind)
    FROM (SELECT project_id, id, name FROM capsules WHERE id = OLD.capsule_id) AS found;
END;
CREATE TRIGGER event_grant_added AFTER INSERT ON grants WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'network.allowed', found.*, NEW.rule, '{}'
    FROM (SELECT project_id, id, name FROM capsules WHERE id = NEW.capsule_id) AS found;
END;
CREATE TRIGGER event_grant_dropped AFTER DELETE ON grants WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'network.revoked', found.*, OLD.rule, '{}'
    FROM (SELECT project_id, id, name FROM capsules WHERE id = OLD.capsule_id) AS found;
END;
CREATE TRIGGER event_project_grant_added AFTER INSERT ON project_grants WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'network.allowed', found.*, NEW.rule, '{}'
    FROM (SELECT NEW.project_id, NULL, NULL) AS found;
END;
CREATE TRIGGER event_project_grant_dropped AFTER DELETE ON project_grants WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'network.revoked', found.*, OLD.rule, '{}'
    FROM (SELECT OLD.project_id, NULL, NULL) AS found;
END;
CREATE TRIGGER event_port_leased AFTER INSERT ON ports WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'port.leased', found.*, NEW.name, json_object('port', NEW.port, 'number', NEW.number)
    FROM (SELECT project_id, id, name FROM capsules WHERE id = NEW.capsule_id) AS found;
END;
CREATE TRIGGER event_port_released AFTER DELETE ON ports WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'port.released', found.*, OLD.name, json_object('port', OLD.port, 'number', OLD.number)
    FROM (SELECT project_id, id, name FROM capsules WHERE id = OLD.capsule_id) AS found;
END;
CREATE TRIGGER event_checkout_made AFTER INSERT ON checkouts WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'port.checked-out', found.*, '', json_object('ports', json(NEW.ports))
    FROM (SELECT project_id, id, name FROM capsules WHERE id = NEW.capsule_id) AS found;
END;
CREATE TRIGGER event_checkout_ended AFTER DELETE ON checkouts WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'port.checked-in', found.*, '', json_object('ports', json(OLD.ports))
    FROM (SELECT project_id, id, name FROM capsules WHERE id = OLD.capsule_id) AS found;
END;
CREATE TRIGGER event_snapshot_taken AFTER INSERT ON snapshots WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'snapshot.taken', found.*, NEW.number, json_object('kind', NEW.kind, 'target', NEW.target)
    FROM (SELECT project_id, id, name FROM capsules WHERE id = NEW.capsule_id) AS found;
END;
CREATE TRIGGER event_automatic_changed AFTER UPDATE OF automatic ON capsules WHEN OLD.automatic <> NEW.automatic BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'snapshot.automatic-' || iif(NEW.automatic, 'on', 'off'), found.*, '', '{}'
    FROM (SELECT NEW.project_id, NEW.id, NEW.name) AS found;
END;
CREATE TRIGGER event_secret_granted AFTER INSERT ON secret_grants WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'secret.granted', found.*, (SELECT name FROM secrets WHERE id = NEW.secret_id), json_object('expires_at', NEW.expires_at)
    FROM (SELECT project_id, id, name FROM capsules WHERE id = NEW.capsule_id) AS found;
END;
CREATE TRIGGER event_secret_revoked AFTER DELETE ON secret_grants WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'secret.revoked', found.*, coalesce((SELECT name FROM secrets WHERE id = OLD.secret_id), ''), '{}'
    FROM (SELECT project_id, id, name FROM capsules WHERE id = OLD.capsule_id) AS found;
END;
CREATE TRIGGER event_agent_made AFTER INSERT ON agents WHEN 1 BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'agent.' || NEW.state, found.*, NEW.adapter, json_object('reason', NEW.reason)
    FROM (SELECT project_id, id, name FROM capsules WHERE id = NEW.capsule_id) AS found;
END;
CREATE TRIGGER event_agent_changed AFTER UPDATE OF state, reason ON agents WHEN OLD.state <> NEW.state OR OLD.reason <> NEW.reason BEGIN
    INSERT INTO events (at, kind, project_id, capsule_id, capsule, subject, payload)
    SELECT (julianday('now') - 2440587.5) * 86400.0, 'agent.' || NEW.state, found.*, NEW.adapter, json_object('from', OLD.state, 'reason', NEW.reason)
    FROM (SELECT project_id, id, name FROM capsules WHERE id = NEW.capsule_id) AS found;
END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('capsules',2);
INSERT INTO "sqlite_sequence" VALUES('runs',2);
INSERT INTO "sqlite_sequence" VALUES('snapshots',1);
INSERT INTO "sqlite_sequence" VALUES('events',5);
INSERT INTO "sqlite_sequence" VALUES('secrets',1);
COMMIT;
PRAGMA user_version=14;
