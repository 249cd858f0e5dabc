PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE projects (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, root TEXT NOT NULL, git_dir TEXT NOT NULL UNIQUE
) STRICT;
INSERT INTO projects VALUES('repo-2db03035','repo','/place/repo','/place/repo/.git');
CREATE TABLE capsules (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL, level TEXT NOT NULL, state TEXT NOT NULL,
    base_commit TEXT NOT NULL, base_ref TEXT NOT NULL, branch TEXT,
    workspace TEXT NOT NULL, directory TEXT NOT NULL, time_limit_s REAL,
    created_at REAL NOT NULL, removal TEXT, exported TEXT NOT NULL DEFAULT '[]', automatic INTEGER NOT NULL DEFAULT 0, browser TEXT NOT NULL DEFAULT '', narrowed TEXT NOT NULL DEFAULT '[]',
    UNIQUE (project_id, name)
) STRICT;
INSERT INTO capsules VALUES(1,'repo-2db03035','x','clone','ready','d2f8216f8ed240a5e03183ae19b9cc3dbeca6ba1','main','atoll/x','/place/repo','/place/home/projects/repo-2db03035/x',NULL,1794983372.3828408718,NULL,'[]',0,'chromium-5bd7b424dbee','[]');
INSERT INTO capsules VALUES(2,'repo-2db03035','w','worktree','ready','d2f8216f8ed240a5e03183ae19b9cc3dbeca6ba1','main','atoll/w','/place/home/projects/repo-2db03035/w/workspace/w','/place/home/projects/repo-2db03035/w',NULL,1794983377.5872409343,NULL,'[]',0,'','[]');
CREATE TABLE leases (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    position INTEGER NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL,
    PRIMARY KEY (capsule_id, position)
) STRICT;
INSERT INTO leases VALUES(1,0,'workspace','{"driver": "overlay", "repository": "/place/repo/.git", "checkout": "/place/repo", "path": "/place/repo", "branch": "atoll/x", "base_commit": "d2f8216f8ed240a5e03183ae19b9cc3dbeca6ba1", "pool": "/place/home/pools/repo-2db03035", "layers": ["cec1a6b50d5f04b52", "gc74e4a6a9b350f4d", "u1db04cf86202"], "upper": "u3ed60c15aca3", "way": "privileged", "git": "gc74e4a6a9b350f4d", "disk_bytes": 0}');
INSERT INTO leases VALUES(1,1,'isolation','{"driver": "namespace", "workspace": "/place/repo", "private": "/place/home/pools/repo-2db03035/inside/state", "variables": {}, "author": "T", "email": "t@example.org", "seed": "/place/home/pools/repo-2db03035/layers/u1db04cf86202/tree", "holder": "/place/home/projects/repo-2db03035/x", "tools": "", "home": "", "uid": null, "network": "open", "setup_network": "", "allow": [], "limits": {}}');
INSERT INTO leases VALUES(2,0,'workspace','{"driver": "worktree", "repository": "/place/repo/.git", "checkout": "/place/repo", "path": "/place/home/projects/repo-2db03035/w/workspace/w", "branch": "atoll/w", "base_commit": "d2f8216f8ed240a5e03183ae19b9cc3dbeca6ba1", "pool": "", "layers": [], "upper": "", "way": "", "git": "", "disk_bytes": 0}');
INSERT INTO leases VALUES(2,1,'isolation','{"driver": "process", "workspace": "/place/home/projects/repo-2db03035/w/workspace/w", "private": "/place/home/projects/repo-2db03035/w/private", "variables": {}, "author": "T", "email": "t@example.org", "seed": "", "holder": "", "tools": "", "home": "", "uid": null, "network": "open", "setup_network": "", "allow": [], "limits": {}}');
CREATE TABLE ports (
    port INTEGER PRIMARY KEY,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    name TEXT NOT NULL, number INTEGER, position INTEGER NOT NULL DEFAULT 0, UNIQUE (capsule_id, name)
) STRICT;
INSERT INTO ports VALUES(29490,1,'web',NULL,0);
INSERT INTO ports VALUES(29491,2,'web',NULL,0);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, token TEXT NOT NULL UNIQUE, argv TEXT NOT NULL, state TEXT NOT NULL,
    background INTEGER NOT NULL, tty INTEGER NOT NULL, directory TEXT NOT NULL,
    created_at REAL NOT NULL, ended_at REAL, outcome TEXT, network TEXT, write TEXT NOT NULL DEFAULT '[]',
    UNIQUE (capsule_id, number)
) STRICT;
INSERT INTO runs VALUES(1,1,1,'41675976fdba1d98','["sh", "-c", "echo one > f; echo p > $HOME/h"]','ended',0,0,'/place/home/projects/repo-2db03035/x/runs/1',1794983373.039009571,1794983373.4746260642,'{"reason": "exited", "exit_code": 0, "signal": null, "message": null, "leftover": 0, "cpu_s": 0.003137, "max_rss_bytes": 10252288}',NULL,'[]');
INSERT INTO runs VALUES(2,1,2,'4d18ac8bc9754278','["sh", "-c", "echo two > f"]','ended',0,0,'/place/home/projects/repo-2db03035/x/runs/2',1794983375.8620164394,1794983376.2225203513,'{"reason": "exited", "exit_code": 0, "signal": null, "message": null, "leftover": 0, "cpu_s": 0.002939, "max_rss_bytes": 10203136}',NULL,'[]');
CREATE TABLE trust (
    path TEXT PRIMARY KEY, digest TEXT NOT NULL, approved_at REAL NOT NULL
) STRICT;
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, message TEXT NOT NULL, layers TEXT NOT NULL,
    automatic INTEGER NOT NULL, synced INTEGER NOT NULL, created_at REAL NOT NULL, browser TEXT NOT NULL DEFAULT '', moment TEXT NOT NULL DEFAULT '',
    UNIQUE (capsule_id, number)
) STRICT;
INSERT INTO snapshots VALUES(1,1,1,'first','["cec1a6b50d5f04b52", "gc74e4a6a9b350f4d", "u1db04cf86202"]',0,0,1794983374.933391571,'chromium-b8c6721c05d8','nothing runs');
CREATE TABLE grants (
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE,
    rule TEXT NOT NULL, granted_at REAL NOT NULL,
    PRIMARY KEY (capsule_id, rule)
) STRICT;
CREATE TABLE checkouts (
    project_id TEXT PRIMARY KEY REFERENCES projects (id) ON DELETE CASCADE,
    capsule_id INTEGER NOT NULL REFERENCES capsules (id) ON DELETE CASCADE
, ports TEXT NOT NULL DEFAULT '[]') STRICT;
CREATE TABLE project_grants (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    rule TEXT NOT NULL, granted_at REAL NOT NULL,
    PRIMARY KEY (project_id, rule)
) STRICT;
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('capsules',2);
INSERT INTO sqlite_sequence VALUES('runs',2);
INSERT INTO sqlite_sequence VALUES('snapshots',1);
COMMIT;
PRAGMA user_version = 8;
