"""Package stores of the owner's inside of a capsule: read, changed, and never written through."""

from __future__ import annotations

import base64
import fcntl
import functools
import hashlib
import http.server
import io
import json
import os
import tarfile
import threading

import pytest

import persons
from atoll.keeper import calls
from atoll.model.package_stores import PACKAGE_STORES
from persons import MS_PRIVATE, MS_REC, as_user

SECRET = "only-for-the-owner"
CREDENTIALS = (
    ".npmrc", ".netrc", ".yarnrc.yml", ".cargo/credentials", ".cargo/credentials.toml",
    ".cargo/config.toml", ".cargo/git/db/repo/FETCH_HEAD", ".m2/settings.xml",
    ".m2/settings-security.xml", ".gradle/gradle.properties", ".gradle/init.gradle",
    ".config/pip/pip.conf", ".config/pypoetry/auth.toml", ".config/uv/uv.toml",
    ".local/share/uv/credentials/credentials.toml", ".config/ccache/ccache.conf",
    ".npm/_logs/debug.log", ".cache/mozilla/page",
    ".cache/ccache/ccache.conf", ".ccache/ccache.conf", ".cache/uv/git-v0/db/repo/config",
    ".cache/pypoetry/src/repo/.git/config", "go/pkg/mod/cache/vcs/repo/config",
    ".cargo/registry/index/host-1/.git/FETCH_HEAD", ".local/share/pnpm/store/v10/projects/one",
    ".cache/yarn/v6/.tmp/one/config", ".bun/install/cache/one.git/config",
)  # fmt: skip
"""What tools keep around their stores, and in them."""


def contents(root):
    """Everything below a directory: modes, times of change and contents."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(root.rglob("*"))
    }


def fill_stores(person):
    """Each store with a file that only its owner can read, and a directory."""
    home = person.place / "owner"
    files = {f"{store.below_home}/held/one": "host\n" for store in PACKAGE_STORES}
    person.write(files, root=home)
    for name in files:
        (home / name).chmod(0o600)
    return home


def each_store(script):
    """A script for a shell, run in each of the stores."""
    places = " ".join(f"~/{store.below_home}" for store in PACKAGE_STORES)
    return f"for place in {places}; do cd $place; {script}; done"


@as_user
def test_a_store_is_copied_on_write(person):
    home = fill_stores(person)
    before = contents(home)
    person.atoll("new", "x")
    count = len(PACKAGE_STORES)
    assert person.sh("x", each_store("cat held/one")) == "host\n" * count
    change = (
        "echo new > held/one; echo two > two; mv two three; mkdir d; rm -r held/one; : > held/n"
    )
    person.sh("x", each_store(change))
    assert contents(home) == before
    # What the owner adds is seen; what the capsule has changed stays its own.
    person.write({f"{store.below_home}/later": "later\n" for store in PACKAGE_STORES}, root=home)
    person.end_view("x")
    listed = person.sh("x", each_store("echo $(ls . held)"))
    assert listed == ".: d held later three held: n\n" * count


@as_user
def test_changes_follow_snapshots_forks_and_rollbacks(person):
    fill_stores(person)
    person.atoll("new", "x")
    person.sh("x", each_store("echo one > mine; rm held/one"))
    person.atoll("snapshot", "x", "-m", "one")
    person.sh("x", each_store("echo two > mine"))
    person.atoll("fork", "x", "y")
    person.atoll("fork", "x", "z", "--at", "1")
    person.atoll("rollback", "x", "1")
    count = len(PACKAGE_STORES)
    for name, said in (("y", "two"), ("z", "one"), ("x", "one")):
        assert person.sh(name, each_store("echo $(cat mine; ls held)")) == f"{said}\n" * count


@as_user
def test_no_credential_comes_in_with_a_store(person):
    home = fill_stores(person)
    person.write(dict.fromkeys(CREDENTIALS, SECRET), root=home)
    person.atoll("new", "x")
    assert person.sh("x", f"grep -rsl {SECRET} ~ || true") == ""
    # As a control: what lies beside the hidden ones is seen, and the names are free.
    found = person.sh(
        "x", "cat ~/go/pkg/mod/held/one; mkdir -p ~/go/pkg/mod/cache/vcs/own; ls ~/go"
    )
    assert found == "host\npkg\n"
    assert (home / "go/pkg/mod/cache/vcs/repo/config").read_text() == SECRET


APPEARS_LATER = (
    ".cache/uv/git-v0/db/1/config", ".cache/uv/git-v7/db/1/config",
    ".cargo/registry/index/priv/.git/config",
    ".cargo/registry/index/index.crates.io-1949cf8c6b5b557f/.git/config",
    ".cache/pypoetry/src/repo/.git/config", ".cache/pypoetry/cache/git/repo/config",
    "go/pkg/mod/cache/vcs/repo/config", ".local/share/pnpm/store/v10/projects/one",
    ".local/share/pnpm/store/v11/projects/one", ".cache/ccache/ccache.conf",
    ".ccache/ccache.conf", ".cache/yarn/.tmp/one/config", ".cache/yarn/v6/.tmp/one/config",
)  # fmt: skip
"""In each store that hides something, with and without the directories above it."""


@as_user
def test_what_appears_while_a_view_is_open_stays_hidden(person):
    home = fill_stores(person)
    person.write({"v10/files/one": ""}, root=home / ".local/share/pnpm/store")
    person.write({"held": ""}, root=home / ".cargo/registry/index")
    person.atoll("new", "x")
    holding = person.popen("run", "x", "--", "sh", "-c", "echo; cat")
    try:
        assert holding.stdout.readline() == b"\n"
        person.write(dict.fromkeys(APPEARS_LATER, SECRET), root=home)
        person.write({".cache/uv/later/one": "later\n"}, root=home)
        places = " ".join(f"~/{path}" for path in APPEARS_LATER)
        said = person.sh("x", f"cat {places} 2> /dev/null || true; cat ~/.cache/uv/later/one")
        assert said == "later\n"
        assert person.sh("x", f"grep -rsl {SECRET} ~ || true") == ""
    finally:
        holding.communicate(timeout=60)


def test_each_store_that_hides_something_is_tried():
    hiding = {store.below_home for store in PACKAGE_STORES if store.hidden}
    tried = {place for place in hiding if any(p.startswith(f"{place}/") for p in APPEARS_LATER)}
    # The names of bun's clones are not known: they are hidden from the next view on.
    later = {".bun/install/cache", ".cargo/registry/index/index.crates.io-6f17d22bba15001f"}
    assert hiding - tried <= later


@as_user
def test_a_lock_inside_is_not_the_owners(person):
    home = fill_stores(person)
    person.write({".lock": ""}, root=home / ".cache/uv")
    person.atoll("new", "x")
    holding = person.popen(
        "run", "x", "--", "sh", "-c", "flock ~/.cache/uv/.lock sh -c 'echo; cat'"
    )
    try:
        assert holding.stdout.readline() == b"\n"
        with (home / ".cache/uv/.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        holding.communicate(timeout=60)


@as_user
def test_what_is_written_counts_towards_the_disk_limit(person):
    fill_stores(person)
    person.atoll("new", "x", "--limit", "disk=20M")
    fill = "for n in $(seq 100); do head -c 4M /dev/zero > ~/.cache/uv/$n; sleep 0.1; done"
    person.atoll("run", "x", "--", "sh", "-c", fill, check=False)
    assert person.outcome("x")["reason"] == "disk"


@as_user
def test_a_store_of_its_own_is_not_covered(person):
    """From before the owner had one, or from before Atoll shared any."""
    person.atoll("new", "x")
    person.sh("x", "mkdir -p ~/.npm/_cacache && echo mine > ~/.npm/_cacache/mine")
    fill_stores(person)
    person.end_view("x")
    assert person.sh("x", "cat ~/.npm/_cacache/*; cat ~/.cache/pip/held/one") == "mine\nhost\n"


@as_user
def test_a_store_that_is_gone_leaves_the_changes(person):
    home = fill_stores(person)
    person.atoll("new", "x")
    person.sh("x", "echo mine > ~/.m2/repository/mine")
    person.run("rm", "-rf", home / ".m2", cwd=person.place)
    person.end_view("x")
    assert person.sh("x", "cat ~/.m2/repository/mine; ls ~/.m2/repository") == "mine\nmine\n"


@as_user
def test_elsewhere_by_variables(person):
    data = person.place / "data"
    stores = ("uv", "cargo/registry/cache", "cache/pip", "pnpm/store")
    person.write({f"{name}/one": f"{name}\n" for name in stores}, root=data)
    env = {"UV_CACHE_DIR": f"{data}/uv", "CARGO_HOME": f"{data}/cargo",
           "XDG_CACHE_HOME": f"{data}/cache", "PNPM_HOME": f"{data}/pnpm"}  # fmt: skip
    person.atoll("new", "x", env=env)
    script = (
        "cat $UV_CACHE_DIR/one ~/.cargo/registry/cache/one ~/.cache/pip/one;"
        "cat $npm_config_store_dir/one;"
        f"echo $UV_CACHE_DIR $npm_config_store_dir; : > {data}/uv/new"
    )
    done = person.atoll("run", "x", "--", "sh", "-euc", script, env=env)
    said = "".join(f"{name}\n" for name in stores)
    assert done.stdout == f"{said}{data}/uv {data}/pnpm/store\n"
    assert not (data / "uv/new").exists()


@pytest.mark.parametrize("has_store", [False, True], ids=["without a store", "with a store"])
@as_user
def test_the_directory_of_pnpm_on_path(person, has_store):
    """As its installer sets it up: it was shown read-only, and with it the store."""
    share = person.place / "owner/.local/share/pnpm"
    person.write({"tool": "#!/bin/sh\necho tool\n"}, root=share)
    (share / "tool").chmod(0o755)
    if has_store:
        person.write({"v10/files/one": "one\n"}, root=share / "store")
    env = {"PATH": f"{share}:{person.env['PATH']}", "PNPM_HOME": str(share)}
    person.atoll("new", "x", env=env)
    script = f"tool; mkdir -p {share}/store/v10/files; echo two > {share}/store/v10/files/two"
    assert person.atoll("run", "x", "--", "sh", "-euc", script, env=env).stdout == "tool\n"
    assert not (share / "store/v10/files/two").exists()


def test_a_store_on_a_filesystem_without_mappings(person):
    """Root's capsules then have a private store: adding works all the same."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount an overlay for others")
    home = fill_stores(person)
    places = {name: person.place / name for name in ("upper", "work")}
    for place in places.values():
        place.mkdir()
    pip = home / ".cache/pip"
    options = "lowerdir={},upperdir={upper},workdir={work}".format(pip, **places)

    def confined():
        calls.unshare(calls.CLONE_NEWNS)
        calls.mount("none", "/", "", MS_REC | MS_PRIVATE)
        calls.mount("overlay", str(pip), "overlay", 0, options)

    # All in one mount namespace: another one cannot speak to the capsule's holder.
    done = person.run(
        "sh", "-euc", """
        atoll() { "$PYTHON" -m atoll "$@"; }
        atoll new -q x
        atoll run x -- sh -c 'echo mine > ~/.cache/pip/mine; ls ~/.cache/pip ~/.cache/uv'
        atoll run x -- sh -c 'cat ~/.cache/pip/mine'
        atoll rm -q --force x
        """,
        confined=confined, env={"PYTHON": persons.sys.executable},
    )  # fmt: skip
    said = done.stdout.splitlines()
    assert said[0] == said[-1] == "x"
    assert said[-2] == "mine"
    assert "held" in said  # of uv, as a control
    assert "mine" in said[1:3]
    assert not (pip / "mine").exists()


@pytest.fixture
def registry():
    """The address of a registry for npm that has the package `tiny`."""
    content = json.dumps({"name": "tiny", "version": "1.0.0"}).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    tarball = packed.getvalue()
    digest = base64.b64encode(hashlib.sha512(tarball).digest()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            dist = {"tarball": f"http://{self.headers['Host']}/tiny.tgz",
                    "integrity": f"sha512-{digest}"}  # fmt: skip
            version = {"name": "tiny", "version": "1.0.0", "dist": dist}
            about = {
                "name": "tiny",
                "dist-tags": {"latest": "1.0.0"},
                "versions": {"1.0.0": version},
            }
            body = tarball if self.path == "/tiny.tgz" else json.dumps(about).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.05))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@as_user
def test_npm_installs_offline_from_the_owners_cache(person, registry):
    persons.require("npm")
    project = {"name": "p", "version": "1.0.0", "dependencies": {}}
    person.write({"package.json": json.dumps(project), ".gitignore": "node_modules\n"})
    person.commit("a project")
    words = ("npm", "install", "--no-audit", "--no-fund", f"--registry={registry}")
    warm = person.place / "warm"
    person.write({"package.json": json.dumps(project)}, root=warm)
    person.run(*words, "tiny", cwd=warm)
    cache = person.place / "owner/.npm/_cacache"
    before = contents(cache)
    assert before
    person.atoll("new", "x", "--network", "none")
    person.atoll("run", "x", "--", *words, "--offline", "tiny")
    assert person.sh("x", "ls node_modules") == "tiny\n"
    assert contents(cache) == before


@as_user
def test_ccache_hits_what_the_owner_has_compiled(person):
    persons.require("ccache")
    persons.require("gcc")
    person.write({"one.c": "int one(void) { return 1; }\n"})
    person.commit("a source")
    env = {"CCACHE_NODEPEND": "1"}
    person.run("ccache", "gcc", "-c", "one.c", "-o", person.place / "one.o", env=env)
    cache = person.place / "owner/.cache/ccache"
    before = contents(cache)
    person.atoll("new", "x")
    script = "ccache -z; ccache gcc -c one.c -o one.o; ccache --print-stats"
    said = dict(line.split() for line in person.sh("x", script).splitlines() if "\t" in line)
    assert int(said["direct_cache_hit"]) + int(said["preprocessed_cache_hit"]) == 1
    assert contents(cache) == before
