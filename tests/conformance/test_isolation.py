"""Every isolation driver, and the fake, held to the contract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.drivers.isolation.process import OpenProcess, ScrubbedProcess, allowed_environment
from atoll.drivers.registry import isolation_driver
from atoll.host.process import run
from atoll.testing.conformance.isolation import (
    ALLOWED,
    CANARIES,
    IsolationSuite,
    PrivateIsolationSuite,
)
from atoll.testing.fakes import FakeIsolation

pytestmark = pytest.mark.usefixtures("atoll_home")


class TestScrubbedProcess(PrivateIsolationSuite):
    def driver(self):
        return isolation_driver("process")

    def test_the_driver_is_the_one_of_the_registry(self):
        assert type(self.driver()) is ScrubbedProcess

    @pytest.mark.parametrize(("key", "expected"), [("user.name", 0), ("user.email", 1)])
    def test_git_inside_knows_the_owner(self, tmp_path, key, expected):
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        said = run(("git", "config", "--global", key), within=trial.enclosure()).text
        assert said.removesuffix("\n") == (trial.plan.author, trial.plan.email)[expected]
        trial.driver.release(trial.plan, home=trial.home)

    def test_git_inside_knows_nothing_else_of_the_owner(self, tmp_path):
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        asked = ("git", "config", "--global", "--list", "--name-only")
        said = run(asked, within=trial.enclosure()).text
        assert set(said.split()) == {"user.name", "user.email", "safe.directory"}
        trial.driver.release(trial.plan, home=trial.home)

    @pytest.mark.parametrize("author", ['a\n[core]\n\tsshCommand = "evil"', 'x"', "x\\", "#;x", ""])
    def test_name_of_the_owner_cannot_add_settings(self, tmp_path, author):
        trial = self.trial(tmp_path)
        plan = trial.driver.plan(
            type(trial.request)(
                workspace=trial.request.workspace,
                directory=trial.request.directory,
                variables={},
                author=author,
                email="",
            )
        )
        trial.driver.apply(plan)
        inside = trial.driver.enclosure(plan, trial.owner)
        asked = ("git", "config", "--global", "--list", "--name-only")
        assert set(run(asked, within=inside).text.split()) <= {"user.name", "safe.directory"}
        trial.driver.release(plan, home=trial.home)

    def test_toolchains_of_the_owner_are_found_again(self, tmp_path):
        trial = self.trial(tmp_path)
        (tmp_path / "owner" / ".rustup").mkdir(parents=True)
        (tmp_path / "owner" / ".cargo").mkdir()
        inside = trial.enclosure(HOME=str(tmp_path / "owner"), CARGO_HOME="/somewhere")
        assert inside.env["RUSTUP_HOME"] == str(tmp_path / "owner" / ".rustup")
        assert "CARGO_HOME" not in inside.env
        assert "NVM_DIR" not in inside.env


class TestOpenProcess(IsolationSuite):
    def driver(self):
        return isolation_driver("open")

    def test_the_driver_is_the_one_of_the_registry(self):
        assert type(self.driver()) is OpenProcess

    def test_home_and_tmp_are_the_owners(self, tmp_path):
        inside = self.trial(tmp_path).enclosure(HOME="/home/ann", TMPDIR="/scratch")
        assert (inside.env["HOME"], inside.env["TMPDIR"]) == ("/home/ann", "/scratch")

    def test_it_makes_nothing(self, tmp_path):
        trial = self.trial(tmp_path)
        trial.driver.apply(trial.plan)
        assert list(trial.home.iterdir()) == []


class TestFake(PrivateIsolationSuite):
    def driver(self):
        return FakeIsolation()

    def test_it_remembers_what_it_handed_out(self, tmp_path):
        trial = self.trial(tmp_path)
        first, second = trial.enclosure(), trial.enclosure(LANG="C")
        assert trial.driver.enclosures == [first, second]  # type: ignore[attr-defined]


names = st.one_of(
    st.sampled_from(sorted({*CANARIES, *ALLOWED})),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True),
    st.from_regex(r"(LC|XDG|GIT|AWS|SSH|ATOLL|HTTP)_[A-Z_]{0,12}", fullmatch=True),
    st.text(st.characters(exclude_characters="=\0", exclude_categories=["Cs"]), max_size=12),
)
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@given(st.dictionaries(names, values, max_size=30))
def test_allow_list_holds_for_any_environment(owner):
    env = allowed_environment(owner)
    assert set(env) <= ALLOWED
    assert "PATH" in env
    assert all(env[key] == owner[key] for key in env if key in owner)


@given(
    st.sampled_from(["http_proxy", "HTTPS_PROXY", "All_Proxy", "ALL_PROXY", "no_proxy"]),
    st.text(min_size=1, max_size=10),
)
def test_proxy_with_a_password_is_left_out(name, password):
    assert name not in allowed_environment({name: f"http://owner:{password}@proxy:3128"})
    assert allowed_environment({"http_proxy": "http://proxy:3128"})["http_proxy"]
