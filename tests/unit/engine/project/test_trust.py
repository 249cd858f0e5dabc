from __future__ import annotations

import pytest

from atoll.engine.project import trust
from atoll.engine.project.settings import load_config
from atoll.engine.state.session import open_session
from atoll.model.errors import StateError

SETUP = '[capsule]\nsetup = ["make deps"]\n'


@pytest.fixture
def root(tmp_path):
    place = tmp_path / "project"
    place.mkdir()
    return place


@pytest.fixture
def session(atoll_home):
    made = open_session(home=atoll_home)
    yield made
    made.store.close()


@pytest.fixture
def load(root, tmp_path):
    def from_text(text=None):
        if text is not None:
            (root / "atoll.toml").write_text(text)
        return load_config(root, {"XDG_CONFIG_HOME": str(tmp_path / "config")})

    return from_text


def needs_approval(session, config):
    try:
        trust.require_trust(session, config)
    except StateError:
        return True
    return False


@pytest.mark.parametrize(
    "text",
    [
        "",
        '[project]\nname = "shop"\nbase = "main"\n',
        '[checks.test]\nrun = "make test"\n',
        '[stages.local]\nbranch = "main"\nrun = "./deploy"\n',
        '[services.web]\ncommand = "serve"\nport = 3000\n',
    ],
)
def test_what_new_does_not_act_on_needs_no_approval(session, load, text):
    assert not needs_approval(session, load(text))
    assert needs_approval(session, load(text + SETUP)), "control"


def test_no_file_needs_no_approval(session, load):
    assert not needs_approval(session, load())
    assert needs_approval(session, load(SETUP)), "control"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SETUP, "capsule.setup[0] = make deps"),
        ('[capsule]\nlevel = "none"\n', "capsule.level = none"),
        ('[capsule]\nnetwork = "open"\n', "capsule.network = open"),
        ('[capsule]\nnetwork = "allow"\nallow = ["a.example.org"]\n', "a.example.org"),
        ('[capsule]\nenv = { LD_PRELOAD = "/x.so" }\n', "capsule.env.LD_PRELOAD = /x.so"),
        ('[project]\ncarry = [".venv"]\n', "project.carry[0] = .venv"),
        ('[tools]\nuse = "mise"\n', "tools.use = mise"),
    ],
)
def test_what_new_acts_on_needs_approval(session, load, text, shown):
    config = load(text)
    with pytest.raises(StateError) as caught:
        trust.require_trust(session, config)
    assert shown in caught.value.message
    assert caught.value.hint == "read it, then: atoll trust"
    trust.trust(session, config.file)
    assert not needs_approval(session, config)


def test_changed_file_asks_again(session, load):
    config = load(SETUP)
    trust.trust(session, config.file)
    assert trust.is_trusted(session, config.file)
    changed = load(SETUP + "# a comment is a change too\n")
    assert not trust.is_trusted(session, changed.file)
    with pytest.raises(StateError, match="changed"):
        trust.require_trust(session, changed)
    # The former content is what was approved.
    assert not needs_approval(session, load(SETUP))


def test_approval_is_of_one_place(session, load, root, tmp_path):
    trust.trust(session, load(SETUP).file)
    moved = root.rename(tmp_path / "moved")
    config = load_config(moved, {"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert needs_approval(session, config)


def test_approval_can_be_taken_back(session, load):
    config = load(SETUP)
    path = str(config.file.path)
    assert not trust.untrust(session, path)
    trust.trust(session, config.file)
    assert trust.untrust(session, path)
    assert needs_approval(session, config)


def test_approval_outlives_the_process(session, load, atoll_home):
    config = load(SETUP)
    trust.trust(session, config.file)
    again = open_session(home=atoll_home)
    assert not needs_approval(again, config)
    again.store.close()


def test_many_claims_are_cut(session, load):
    config = load("[capsule]\nsetup = [" + ", ".join(f'"c{n}"' for n in range(500)) + "]\n")
    with pytest.raises(StateError) as caught:
        trust.require_trust(session, config)
    assert len(caught.value.message.splitlines()) <= 22


LOWER = '[capsule.limits]\nmemory = "64M"\npids = 10\nfiles = 64\ndisk = "64M"\ncpus = 0.5\n'
RAISED = {
    "memory": '"900T"', "disk": '"900T"', "pids": "4000000", "files": "1000000", "cpus": "1000",
    "output": '"900T"', "idle": '"300d"', "time": '"300d"',
}  # fmt: skip


def test_limits_may_be_lowered_without_approval(session, load):
    assert not needs_approval(session, load(LOWER))
    assert needs_approval(session, load(LOWER + SETUP)), "control"


@pytest.mark.parametrize("name", RAISED)
def test_a_raised_limit_needs_approval(session, load, name):
    config = load(f"[capsule.limits]\n{name} = {RAISED[name]}\n")
    with pytest.raises(StateError, match=f"capsule.limits.{name}"):
        trust.require_trust(session, config)
    trust.trust(session, config.file)
    assert not needs_approval(session, config)


def test_limits_of_the_owner_are_what_counts_as_raised(session, load, root, tmp_path):
    settings = tmp_path / "config" / "atoll" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("[capsule.limits]\npids = 20\n")
    assert not needs_approval(session, load("[capsule.limits]\npids = 20\n"))
    with pytest.raises(StateError, match=r"capsule\.limits\.pids = 21"):
        trust.require_trust(session, load("[capsule.limits]\npids = 21\n"))
    settings.write_text("[capsule.limits]\npids = 9999\n")
    assert not needs_approval(session, load("[capsule.limits]\npids = 9999\n"))


def test_a_raised_limit_that_does_not_hold_needs_no_approval(session, load, root, tmp_path):
    (root / "atoll.toml").write_text('[capsule.limits]\nmemory = "900T"\n')
    owner = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    config = load_config(root, owner, given={"capsule.limits.memory": "1G"})
    trust.require_trust(session, config)
    assert config.raised == ()
