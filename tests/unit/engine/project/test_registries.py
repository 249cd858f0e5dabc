"""Where packages come from is what this machine's tools say, and never what a project says."""

from __future__ import annotations

import json

import pytest

from atoll.engine.project import registries
from atoll.engine.state.session import open_session
from atoll.model import presets
from atoll.model.presets import FOUND


@pytest.fixture
def session(atoll_home, tmp_path, monkeypatch):
    """With no tool but those that a test makes, and a HOME of its own."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "owner").mkdir()
    made = open_session()
    monkeypatch.setattr(
        made, "owner", {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "owner")}
    )
    yield made
    made.forkserver.close()
    made.store.close()


def tool(tmp_path, name, *lines):
    path = tmp_path / "bin" / name
    path.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    path.chmod(0o755)
    return path


def test_tools_are_asked(session, tmp_path):
    tool(tmp_path, "npm", "https://packages.example.org/npm/")
    tool(tmp_path, "python3", "https://a.example.org/simple https://files.example.org")
    tool(tmp_path, "go", "https://modules.example.org,direct", "sums.example.org")
    registries.refresh(session, ["node", "python", "go", "model-apis", "example.net"])
    found = registries.found(session)
    assert found["node"] == ("packages.example.org",)
    assert found["python"] == ("a.example.org", "files.example.org")
    assert found["go"] == ("modules.example.org", "sums.example.org")
    assert set(found) == {"node", "python", "go"}
    assert list(presets.expand(["node", "x.example.org"], found)) == [
        "packages.example.org",
        "x.example.org",
    ]


def test_scoped_registries_of_npm(session, tmp_path):
    settings = {
        "registry": "https://one.example.org/",
        "@acme:registry": "https://user:secret@two.example.org/npm/",
        "//two.example.org/:_authToken": "secret",
        "proxy": "http://proxy.example.org",
    }
    tool(tmp_path, "npm", json.dumps(settings))
    registries.refresh(session, ["node"])
    assert registries.found(session)["node"] == ("one.example.org", "two.example.org")
    assert "secret" not in (session.home / "registries.json").read_text()


def test_tools_read_the_settings_of_the_owner(session, tmp_path):
    npm = tool(tmp_path, "npm")
    npm.write_text('#!/bin/sh\nread -r line < "$HOME/.npmrc" && echo "${line#registry=}"\n')
    (tmp_path / "owner" / ".npmrc").write_text("registry=https://own.example.org/\n")
    registries.refresh(session, ["node"])
    assert registries.found(session)["node"] == ("own.example.org",)


def test_default_registry_of_cargo(session, tmp_path):
    tool(tmp_path, "cargo", "Search packages in the registry. Default registry is crates.example")
    place = tmp_path / "owner" / ".cargo"
    place.mkdir()
    (place / "config.toml").write_text('index = "sparse+https://own.example.org/index/"\n')
    registries.refresh(session, ["rust"])
    assert registries.found(session)["rust"] == (
        "*.crates.example",
        "crates.example",
        "own.example.org",
    )


def test_configured_index_of_pip_replaces_its_default(session, tmp_path):
    python = tool(tmp_path, "python3")
    python.write_text(
        "#!/bin/sh\n"
        "[ $1 = -c ] && echo https://default.example.org/ && exit\n"
        "echo \"global.extra-index-url='https://more.example.org/'\"\n"
    )
    registries.refresh(session, ["python"])
    assert registries.found(session)["python"] == ("default.example.org", "more.example.org")
    tool(tmp_path, "python3", "global.index-url=https://own.example.org/simple")
    registries.refresh(session, ["python"])
    assert registries.found(session)["python"] == ("own.example.org",)


def test_only_indexes_of_pip_are_registries(session, tmp_path):
    tool(
        tmp_path,
        "python3",
        "global.proxy='http://proxy.example.org:80'\n"
        "global.find-links='http://links.example.org/'\n"
        "install.trusted-host='http://trusted.example.org'\n"
        "global.index-url='https://own.example.org/simple'\n"
        "install.extra-index-url='https://more.example.org/'",
    )
    registries.refresh(session, ["python"])
    assert registries.found(session)["python"] == ("more.example.org", "own.example.org")


def test_tools_are_asked_again_when_they_have_changed(session, tmp_path):
    path = tool(tmp_path, "npm", "https://one.example.org/")
    registries.refresh(session, ["node"])
    # As a control: nothing has changed, so nobody is asked.
    path.write_text("#!/bin/sh\nexit 1\n")
    assert registries.found(session)["node"] == ("one.example.org",)
    tool(tmp_path, "npm", "https://two.example.org/")
    (tmp_path / "owner" / ".npmrc").write_text("registry=https://two.example.org/\n")
    registries.refresh(session, ["node"])
    assert registries.found(session)["node"] == ("two.example.org",)


def test_settings_are_read_without_secrets_and_comments(session, tmp_path):
    place = tmp_path / "owner" / ".config" / "uv"
    place.mkdir(parents=True)
    (place / "uv.toml").write_text(
        '# https://old.example.org\n[[index]]\nurl = "https://user:secret@own.example.org/simple"\n'
    )
    registries.refresh(session, ["python"])
    assert registries.found(session)["python"] == ("own.example.org",)
    assert "secret" not in (session.home / "registries.json").read_text()


@pytest.mark.parametrize("name", FOUND)
def test_machine_without_the_tool(session, name):
    registries.refresh(session, [name])
    # That of the system package manager is not in PATH, and is the host's own.
    assert registries.found(session)[name] == () or name in ("debian", "rust", "python")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"node": 1}', '{"node": {"rules": 1}}'])
def test_what_was_kept_may_be_damaged(session, tmp_path, text):
    tool(tmp_path, "npm", "https://one.example.org/")
    (session.home / "registries.json").write_text(text)
    registries.found(session)
    registries.refresh(session, ["node"])
    assert registries.found(session)["node"] == ("one.example.org",)


def test_presets_of_a_project():
    assert presets.default_presets(["README.md"]) == ("model-apis",)
    files = ["pyproject.toml", "src/package.json", "package.json", ".github/workflows/x.yml"]
    assert presets.default_presets(files) == ("model-apis", "node", "python")
    assert presets.proposed(files) == ("model-apis", "node", "python", "github")
