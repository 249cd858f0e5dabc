"""What every isolation driver must do; see `atoll.drivers.contracts.IsolationDriver`.

`IsolationSuite` is for all of them, `PrivateIsolationSuite` for those that promise a private HOME
and TMPDIR. The allow-list here is the suite's own: a driver may take less of it, never more.
"""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from atoll.drivers.contracts import IsolationDriver, IsolationRequest
from atoll.host import process
from atoll.model.enclosure import Enclosure
from atoll.model.plan import IsolationPlan, Lease
from atoll.testing.conformance.witness import ODD, look, release_elsewhere

_SECRET = "canary-hunter2"  # noqa: S105 - the very thing that must not come through

CANARIES: dict[str, str] = {
    **dict.fromkeys(
        (
            "ANTHROPIC_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "BASH_ENV", "CARGO_REGISTRY_TOKEN",
            "CLASSPATH", "DATABASE_URL", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "DOCKER_HOST",
            "ENV", "GH_TOKEN", "GITHUB_TOKEN", "GIT_ASKPASS", "GIT_CONFIG_COUNT",
            "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0", "GIT_DIR", "GIT_EXTERNAL_DIFF",
            "GIT_INDEX_FILE", "GIT_SSH_COMMAND", "GIT_WORK_TREE", "GNUPGHOME",
            "GOOGLE_APPLICATION_CREDENTIALS", "GPG_AGENT_INFO", "KUBECONFIG", "LC_API_TOKEN",
            "LD_AUDIT", "LD_LIBRARY_PATH", "LD_PRELOAD", "MY_SERVICE_PASSWORD", "NETRC",
            "NODE_OPTIONS", "NPM_TOKEN", "OPENAI_API_KEY", "PERL5OPT", "PGPASSWORD",
            "PROMPT_COMMAND", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "RUBYOPT",
            "SESSION_MANAGER", "SHELLOPTS", "SSH_AGENT_PID", "SSH_AUTH_SOCK", "STRIPE_KEY",
            "SUDO_ASKPASS", "VAULT_TOKEN", "VIRTUAL_ENV", "WAYLAND_DISPLAY", "XAUTHORITY",
            "XDG_RUNTIME_DIR", "ATOLL_HOME", "ATOLL_RUN", "_", "OLDPWD", "PWD",
        ),
        _SECRET,
    ),
    "HTTPS_PROXY": f"http://owner:{_SECRET}@proxy.example.org:3128",
    "https_proxy": f"http://{_SECRET}@proxy.example.org:3128",
    "http_proxy": f"http://owner:{_SECRET}@proxy.example.org:3128",
    "ALL_PROXY": f"socks5://owner:{_SECRET}@proxy.example.org:1080",
    "BASH_FUNC_ls%%": f"() {{ echo {_SECRET}; }}",
}  # fmt: skip
"""Variables of an owner's shell that must not be visible inside."""

ALLOWED = frozenset(
    {
        "CI", "COLORTERM", "CURL_CA_BUNDLE", "FORCE_COLOR", "GOROOT", "JAVA_HOME", "LANG",
        "LANGUAGE", "LOGNAME", "NODE_EXTRA_CA_CERTS", "NO_COLOR", "PATH", "PIP_CERT",
        "REQUESTS_CA_BUNDLE", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TZ", "USER",
        "LC_ADDRESS", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT",
        "LC_MESSAGES", "LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE",
        "LC_TIME",
        "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "all_proxy", "http_proxy",
        "https_proxy", "no_proxy",
        "ASDF_DATA_DIR", "MISE_DATA_DIR", "NVM_DIR", "PYENV_ROOT", "RBENV_ROOT", "RUSTUP_HOME",
        "SDKMAN_DIR", "VOLTA_HOME",
        "HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
    }
)  # fmt: skip
"""All that an enclosure may hold besides the plan's own variables."""


@dataclass(frozen=True, kw_only=True)
class IsolationTrial:
    """One isolation, from request to release."""

    driver: IsolationDriver
    request: IsolationRequest
    plan: IsolationPlan
    home: Path

    def enclosure(self, **owner: str) -> Enclosure:
        return self.driver.enclosure(self.plan, {**self.owner, **owner})

    @property
    def owner(self) -> dict[str, str]:
        path = os.environ.get("PATH", os.defpath)
        return {"PATH": path, "HOME": str(self.home.parent), "USER": "owner"}


class IsolationSuite:
    """For every driver: nothing of the owner's comes in but what the allow-list names."""

    def driver(self) -> IsolationDriver:
        raise NotImplementedError

    def request(self, place: Path) -> IsolationRequest:
        """A capsule whose private places lie below `place/home`."""
        workspace = place / "workspace"
        workspace.mkdir(parents=True)
        return IsolationRequest(
            workspace=str(workspace),
            directory=str(place / "home" / "capsule"),
            variables={"LOG_LEVEL": "debug", "LANG": "C.UTF-8"},
            author='Ann "Quote" O\'Neil\\',
            email="ann@example.org",
        )

    def trial(self, place: Path) -> IsolationTrial:
        (place / "home").mkdir(parents=True)
        driver, request = self.driver(), self.request(place)
        return IsolationTrial(
            driver=driver, request=request, plan=driver.plan(request), home=place / "home"
        )

    def allowed(self, trial: IsolationTrial) -> frozenset[str]:
        return ALLOWED | trial.plan.variables.keys()

    def test_check_changes_nothing(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        before = look(tmp_path)
        assert trial.driver.check(trial.home) == trial.driver.check(trial.home)
        assert look(tmp_path) == before

    def test_plan_is_pure(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        before = look(tmp_path)
        assert trial.driver.plan(trial.request) == trial.plan
        assert trial.plan.driver == trial.driver.name
        assert look(tmp_path) == before

    def test_plan_survives_the_store(self, tmp_path: Path) -> None:
        lease = Lease(kind="isolation", plan=self.trial(tmp_path).plan)
        assert Lease.parse("isolation", json.loads(json.dumps(lease.payload()))) == lease

    def test_no_secret_of_the_owner_comes_in(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        inside = trial.enclosure(**CANARIES)
        leaked = {key for key, value in inside.env.items() if _SECRET in value}
        assert leaked == set()
        trial.driver.release(trial.plan, home=trial.home)

    def test_no_variable_outside_the_allow_list(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        names = {*CANARIES, *ALLOWED, *(name.lower() for name in ALLOWED), "path", "Path", "", "X"}
        inside = trial.enclosure(**dict.fromkeys(names, "/nonexistent"))
        assert set(inside.env) - self.allowed(trial) == set()

    def test_empty_environment_of_the_owner_is_enough(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        inside = trial.driver.enclosure(trial.plan, {})
        assert set(inside.env) - self.allowed(trial) == set()

    def test_variables_of_the_plan_are_there_and_win(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        inside = trial.enclosure(LOG_LEVEL="of the owner", LANG="de_DE.UTF-8")
        assert inside.env["LOG_LEVEL"] == "debug"
        assert inside.env["LANG"] == "C.UTF-8"

    def test_enclosure_changes_nothing(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        before, owner = look(tmp_path), dict(CANARIES)
        assert trial.enclosure(**owner) == trial.enclosure(**owner)
        assert look(tmp_path) == before
        assert owner == CANARIES
        trial.driver.release(trial.plan, home=trial.home)

    def test_process_inside_sees_the_enclosure_and_no_more(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        inside = trial.enclosure(**CANARIES)
        said = process.run(("/bin/sh", "-c", "pwd -P; env -0"), within=inside).text
        place, _, listing = said.partition("\n")
        assert place == os.path.realpath(trial.plan.workspace)
        seen = dict(entry.split("=", 1) for entry in listing.split("\0") if entry)
        for added in ("PWD", "OLDPWD", "SHLVL", "_"):
            seen.pop(added, None)
        assert seen == inside.env
        trial.driver.release(trial.plan, home=trial.home)

    def test_apply_and_release_are_idempotent(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        once = look(tmp_path)
        trial.driver.apply(trial.plan)
        assert look(tmp_path) == once
        for _ in range(2):
            trial.driver.release(trial.plan, home=trial.home)
        assert not list(trial.home.rglob("private"))

    def test_release_of_nothing_is_fine(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        before = look(tmp_path)
        trial.driver.release(trial.plan, home=trial.home)
        assert look(tmp_path) == before

    def test_release_from_another_process(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        lease = Lease(kind="isolation", plan=trial.plan)
        for _ in range(2):
            release_elsewhere(trial.driver, lease, home=trial.home)
        assert not list(trial.home.rglob("private"))

    def test_place_with_anything_in_its_name(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path / ODD)
        trial.driver.apply(trial.plan)
        said = process.run(("/bin/sh", "-c", 'echo "$HOME"'), within=trial.enclosure()).text
        assert said.removesuffix("\n") == trial.enclosure().env["HOME"]
        trial.driver.release(trial.plan, home=trial.home)


class PrivateIsolationSuite(IsolationSuite):
    """For drivers that promise HOME and TMPDIR of a capsule's own."""

    def test_home_and_tmp_are_private_and_writable(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        inside = trial.enclosure(TMPDIR="/tmp", XDG_CONFIG_HOME="/etc")  # noqa: S108 - not used
        script = 'for place in "$HOME" "$TMPDIR"; do echo ok > "$place/probe"; done'
        process.run(("/bin/sh", "-c", script), within=inside)
        for name in ("HOME", "TMPDIR"):
            place = Path(inside.env[name])
            assert place.is_relative_to(trial.home)
            assert (place / "probe").read_text() == "ok\n"
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert inside.env["HOME"] != inside.env["TMPDIR"]
        trial.driver.release(trial.plan, home=trial.home)

    def test_nothing_points_back_to_the_owners_home(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        owner = tmp_path / "owner"
        owner.mkdir()
        names = [name for name in ALLOWED if name.startswith("XDG_")]
        inside = trial.enclosure(HOME=str(owner), **dict.fromkeys(names, f"{owner}/.xdg"))
        assert [key for key, value in inside.env.items() if value.startswith(str(owner))] == []

    def test_second_apply_keeps_what_is_there(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        note = Path(trial.enclosure().env["HOME"], "note")
        note.write_text("kept")
        trial.driver.apply(trial.plan)
        assert note.read_text() == "kept"
        trial.driver.release(trial.plan, home=trial.home)
        assert not note.exists()

    def test_release_follows_no_link(self, tmp_path: Path) -> None:
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("stays")
        os.symlink(outside, Path(trial.enclosure().env["HOME"], "way-out"))
        trial.driver.release(trial.plan, home=trial.home)
        assert (outside / "file").read_text() == "stays"
