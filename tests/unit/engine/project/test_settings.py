from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.engine.project import levels
from atoll.engine.project.settings import load_config, parse_limits, user_file_path
from atoll.model.enclosure import SETTABLE_LIMITS
from atoll.model.errors import SpecError, StateError
from atoll.model.secret import DeclaredSecret, Delivery, DeliveryKind, OriginKind, SecretOrigin
from present import present


@pytest.fixture
def root(tmp_path):
    place = tmp_path / "My Shop"
    place.mkdir()
    return place


LIMITED = levels.LEVELS[3].limits
"""What level `sandbox` limits by itself."""


@pytest.fixture
def owner(tmp_path):
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def write_user_file(owner, text):
    path = user_file_path(owner)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def mistakes_of(caught):
    return {(m.source, m.key): (m.message, m.suggestion) for m in caught.value.mistakes}


def test_defaults_say_that_they_are(root, owner):
    config = load_config(root, owner)
    assert config.file is None
    assert {s.key: (s.value, s.source) for s in config.settings.values.values()} == {
        "project.name": ("my-shop", "default"),
        "project.base": ("HEAD", "default"),
        "capsule.level": ("sandbox", "default"),
        "capsule.network": ("allow", "default"),
        "capsule.allow": (("model-apis",), "default"),
        "capsule.workspace": ("auto", "default"),
        "tools.use": ("none", "default"),
        **{f"capsule.limits.{name}": (value, "default") for name, value in LIMITED.items()},
    }


@pytest.mark.parametrize("level", ["none", "worktree", "clone"])
def test_levels_without_walls_limit_nothing_by_themselves(root, owner, level):
    settings = load_config(root, owner, given={"capsule.level": level}).settings
    assert settings.below("capsule.limits") == {}
    assert settings.value("capsule.network") == "open"


def test_project_without_a_usable_name_is_a_project(tmp_path, owner):
    (tmp_path / "🚀").mkdir()
    assert load_config(tmp_path / "🚀", owner).settings.value("project.name") == "project"


def test_each_layer_covers_the_one_before(root, owner):
    def found(given=None, **environment):
        settings = load_config(root, {**owner, **environment}, given=given).settings
        return settings.value("capsule.level"), settings.source("capsule.level")

    assert found() == ("sandbox", "default")
    user = write_user_file(owner, '[capsule]\nlevel = "vm"\n')
    assert found() == ("vm", user)
    (root / "atoll.toml").write_text('[capsule]\nlevel = "worktree"\n')
    assert found() == ("worktree", "atoll.toml")
    assert found(ATOLL_LEVEL="none") == ("none", "ATOLL_LEVEL")
    assert found({"capsule.level": "sandbox"}, ATOLL_LEVEL="none") == ("sandbox", "command line")


def test_layers_merge_key_by_key(root, owner):
    user = write_user_file(
        owner, '[capsule]\nlimits = { time = "1h", memory = "1G" }\nenv = { A = "u", B = "u" }\n'
    )
    (root / "atoll.toml").write_text('[capsule]\nlimits.time = "2h"\nenv = { B = "p", C = "p" }\n')
    settings = load_config(root, {**owner, "ATOLL_LIMIT_PIDS": "7"}).settings
    said = {"time": 7200.0, "memory": 1 << 30, "pids": 7}
    assert settings.below("capsule.limits") == {**LIMITED, **said}
    assert settings.below("capsule.env") == {"A": "u", "B": "p", "C": "p"}
    assert settings.source("capsule.limits.memory") == user
    assert settings.source("capsule.limits.time") == "atoll.toml"
    assert settings.source("capsule.limits.pids") == "ATOLL_LIMIT_PIDS"


def test_every_variable_is_read(root, owner):
    environment = {
        "ATOLL_BASE": "release/1",
        "ATOLL_LEVEL": "none",
        "ATOLL_NETWORK": "none",
        "ATOLL_LIMIT_MEMORY": "2G",
        "ATOLL_LIMIT_TIME": "90s",
        "ATOLL_HOME": "/ignored",
        "LEVEL": "ignored",
    }
    settings = load_config(root, {**owner, **environment}).settings
    sources = {s.source: s.value for s in settings.values.values() if s.source != "default"}
    assert sources == {
        "ATOLL_BASE": "release/1",
        "ATOLL_LEVEL": "none",
        "ATOLL_NETWORK": "none",
        "ATOLL_LIMIT_MEMORY": 2 << 30,
        "ATOLL_LIMIT_TIME": 90.0,
    }


def test_empty_variable_is_not_given(root, owner):
    settings = load_config(root, {**owner, "ATOLL_LEVEL": "", "ATOLL_LIMIT_TIME": ""}).settings
    assert settings.source("capsule.level") == "default"
    assert settings.below("capsule.limits") == LIMITED


def test_user_file_is_found_below_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_file_path({}) == tmp_path / ".config" / "atoll" / "config.toml"
    assert user_file_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/atoll/config.toml")


def test_all_mistakes_of_a_file_at_once(root, owner):
    (root / "atoll.toml").write_text(
        '[capsule]\nlevl = "none"\nnetwork = "opne"\nlimits = { memory = "x", tme = "1h" }\n'
        "[projct]\n"
    )
    with pytest.raises(SpecError) as caught:
        load_config(root, owner)
    assert {(m.key, m.line, m.suggestion) for m in caught.value.mistakes} == {
        ("capsule.levl", 2, "level"),
        ("capsule.network", 3, "open"),
        ("capsule.limits.memory", 4, None),
        ("capsule.limits.tme", 4, "time"),
        ("projct", 5, "project"),
    }


def test_all_mistakes_of_the_environment_at_once(root, owner):
    environment = {"ATOLL_LEVEL": "worktre", "ATOLL_NETWORK": "x", "ATOLL_LIMIT_TME": "1h",
                   "ATOLL_LIMIT_TIME": "soon", "ATOLL_LIMIT_PIDS": "0"}  # fmt: skip
    with pytest.raises(SpecError) as caught:
        load_config(root, {**owner, **environment})
    found = mistakes_of(caught)
    assert len(caught.value.mistakes) == 5
    assert found["ATOLL_LEVEL", "capsule.level"][1] == "worktree"
    assert found["ATOLL_LIMIT_TME", "capsule.limits.tme"] == ("unknown limit", "time")
    assert found["ATOLL_NETWORK", "capsule.network"][1] is None
    assert "duration" in found["ATOLL_LIMIT_TIME", "capsule.limits.time"][0]
    assert "whole number" in found["ATOLL_LIMIT_PIDS", "capsule.limits.pids"][0]


def test_mistake_on_the_command_line(root, owner):
    with pytest.raises(SpecError) as caught:
        load_config(root, owner, given={"capsule.level": "sanbox"})
    assert mistakes_of(caught)["command line", "--level"][1] == "sandbox"


def test_limit_that_is_wrong_is_named_as_it_was_typed(root, owner):
    with pytest.raises(SpecError) as caught:
        load_config(root, owner, given=parse_limits(["tme=1h", "pids=0"]))
    found = mistakes_of(caught)
    assert found["command line", "--limit tme"] == ("unknown limit", "time")
    assert ("command line", "--limit pids") in found


def test_mistake_in_the_user_file_names_that_file(root, owner):
    path = write_user_file(owner, '[capsule]\nsetup = ["make"]\n')
    with pytest.raises(SpecError) as caught:
        load_config(root, owner)
    assert mistakes_of(caught)[path, "capsule.setup"][0].startswith("belongs in a project's own")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("memory", "4G", 4 << 30),
        ("disk", "512M", 512 << 20),
        ("output", "1K", 1024),
        ("time", "1h30m", 5400.0),
        ("idle", "90", 90.0),
        ("cpus", "0.5", 0.5),
        ("pids", "512", 512),
        ("files", "1024", 1024),
    ],
)
def test_limits_as_words(root, owner, name, text, value):
    given = parse_limits([f"{name}={text}"])
    assert load_config(root, owner, given=given).settings.below("capsule.limits")[name] == value
    (root / "atoll.toml").write_text(f'[capsule.limits]\n{name} = "1"\n')
    off = parse_limits([f"{name}=none"])
    with pytest.raises(SpecError):
        load_config(root, owner, given={**off, "capsule.level": "?"})


def test_limit_is_lifted_by_none(root, owner):
    (root / "atoll.toml").write_text('[capsule.limits]\nmemory = "1G"\n')
    config = load_config(root, owner, given=parse_limits(["memory=none"]))
    assert config.settings.value("capsule.limits.memory", "not there") is None


@pytest.mark.parametrize("name", SETTABLE_LIMITS)
@pytest.mark.parametrize("text", ["", "-1", "0", "x", "nan", "inf", "1e99", "9" * 99, "\x1b[2J"])
def test_bad_limits_are_refused(root, owner, name, text):
    with pytest.raises(SpecError):
        load_config(root, owner, given=parse_limits([f"{name}={text}"]))


@pytest.mark.parametrize("word", ["time", "time=", "=1h", ""])
def test_limit_without_a_value_is_refused(root, owner, word):
    with pytest.raises(SpecError):
        load_config(root, owner, given=parse_limits([word]))


def test_later_limit_wins():
    assert parse_limits(["time=1h", "pids=3", "time=2h"]) == {
        "capsule.limits.time": "2h",
        "capsule.limits.pids": "3",
    }


def test_services_and_secrets_are_known(root, owner):
    (root / "atoll.toml").write_text(
        '[services.web]\ncommand = "serve"\nport = 3000\n[services.job]\ncommand = "work"\n'
        '[secrets.KEY]\nfrom = { env = "KEY" }\n'
    )
    file = present(load_config(root, owner).file)
    key = DeclaredSecret(SecretOrigin(OriginKind.ENV, "KEY"), Delivery(DeliveryKind.VARIABLE))
    assert (file.services, file.secrets) == ({"web": 3000}, {"KEY": key})


def test_digest_is_of_place_and_content(root, owner, tmp_path):
    (root / "atoll.toml").write_text("")
    first = present(load_config(root, owner).file).digest
    assert present(load_config(root, owner).file).digest == first
    other = tmp_path / "other"
    other.mkdir()
    (other / "atoll.toml").write_text("")
    assert present(load_config(other, owner).file).digest != first
    (root / "atoll.toml").write_text("\n")
    assert present(load_config(root, owner).file).digest != first


@pytest.mark.parametrize("kind", ["link", "directory", "large"])
def test_file_that_is_none_is_refused(root, owner, kind):
    path = root / "atoll.toml"
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(StateError):
        load_config(root, owner)


LAYERS = ("user", "project", "environment", "given")
NETWORKS = st.sampled_from(["none", "allow", "open"])


@settings(max_examples=40, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(LAYERS, NETWORKS)))
def test_the_last_layer_that_says_something_wins(layers):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "project")
        root.mkdir()
        owner = {"XDG_CONFIG_HOME": f"{place}/config"}
        text = '[capsule]\nnetwork = "{}"\n'
        if "user" in layers:
            write_user_file(owner, text.format(layers["user"]))
        if "project" in layers:
            (root / "atoll.toml").write_text(text.format(layers["project"]))
        if "environment" in layers:
            owner["ATOLL_NETWORK"] = layers["environment"]
        given_words = {"capsule.network": layers["given"]} if "given" in layers else {}
        found = load_config(root, owner, given=given_words).settings
        sources = {
            "user": str(user_file_path(owner)),
            "project": "atoll.toml",
            "environment": "ATOLL_NETWORK",
            "given": "command line",
        }
    said = [name for name in LAYERS if name in layers]
    value, source = (layers[said[-1]], sources[said[-1]]) if said else ("allow", "default")
    assert (found.value("capsule.network"), found.source("capsule.network")) == (value, source)
    assert found.value("capsule.level") == "sandbox"
