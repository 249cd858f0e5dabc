from __future__ import annotations

import re
import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atoll.model.secretfiles import (
    READ_BYTES,
    Globs,
    find_directory_rule,
    find_rule,
    fits,
    looks_secret,
    names_secret,
)

PEM_KEY = b"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"
CERTIFICATE = b"# Issuer: X\n-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("reason", "names"),
    [
        (
            "an environment file",
            (
                ".env .env.local .env.production .env.test .env.development.local .env-prod "
                ".env_old .env.keys .envrc .envrc.private prod.env docker.env .dev.vars "
                ".dev.vars.staging local.settings.json .env.json .env.key .env.pem"
            ),
        ),
        (
            "a file of secrets",
            (
                "secrets.yml secrets.yaml secrets.json secrets.toml secret.json .secrets "
                "secrets.prod.yml .secrets.toml"
            ),
        ),
        (
            "a private key",
            (
                "id_rsa id_dsa id_ecdsa id_ed25519 id_ed25519_sk id_rsa_github id_rsa.old "
                "ssh_host_rsa_key server.ppk release.pk8 secring.gpg me.agekey"
            ),
        ),
        ("a key store", "a.p12 a.pfx a.jks a.bks release.keystore vault.kdbx login.keychain-db"),
        (
            "a file of passwords",
            (
                ".netrc _netrc .git-credentials .pgpass pgpass.conf .my.cnf .mylogin.cnf .htpasswd "
                ".dockercfg .s3cfg .boto .databrickscfg wp-config.php"
            ),
        ),
        (
            "a Terraform state, which holds secrets in the clear",
            "terraform.tfstate terraform.tfstate.backup a.tfstate.17.backup",
        ),
        ("a file of Terraform variables", "prod.tfvars prod.auto.tfvars prod.tfvars.json"),
        (
            "an access token",
            (
                ".vault-token .terraformrc terraform.rc credentials.tfrc.json .credentials.json "
                "oauth_creds.json access_tokens.db credentials.db"
            ),
        ),
        (
            "an access key",
            (
                "client_secret.json client_secret_12.apps.json client_secrets.json rootkey.csv "
                "me_accessKeys.csv accessKeys.csv"
            ),
        ),
        ("a VPN profile, which holds keys", "office.ovpn"),
        ("a wallet", "wallet.dat my.wallet UTC--2024-01-02T03-04-05.0Z--ab"),
        ("a history of commands", ".bash_history .psql_history .python_history"),
        ("a browser's cookies", "Cookies cookies.txt cookies.sqlite"),
    ],
)
def test_names_that_are_enough(reason, names):
    for name in names.split():
        assert looks_secret(name) == reason, name
        assert looks_secret(name.upper()) == reason, name


@pytest.mark.parametrize(
    "names",
    [
        (
            ".env.example .env.sample .env.template .env.dist .env.defaults .env.schema "
            ".env-example .env.local.example .envrc.example .env.example.txt example.env sample.env"
        ),
        "secrets.example.yml secrets.yml.sample terraform.tfvars.example example.tfvars",
        "secrets.py secrets.js secretsmanager.json secret_service.py",
        "id_rsa.pub id_ed25519.pub id_card.png identity.js id_rsa.bak.pub",
        "debug.keystore environment.ts env.d.ts .envoy.yaml .environment venv",
        "tfstate terraform.tf main.tf.json",
        "index.js package.json README.md LICENSE .eslintrc .gitignore config.yml tokens.css",
        "history cookies.js wallet.js password.ts credentials.py netrc pgpass",
        "key pem env json .json .key.swp",
    ],
)
def test_ordinary_names(names):
    for name in names.split():
        assert find_rule(name) is None, name
    assert find_rule("") is None


def test_example_of_a_secret_is_not_a_local_copy_of_one():
    assert looks_secret(".env.example.local")
    assert looks_secret(".env.sample-prod")


@pytest.mark.parametrize(
    ("names", "secret", "harmless"),
    [
        ("a.pem a.crt a.cer a.cert AuthKey.p8 key.asc", PEM_KEY, CERTIFICATE),
        ("a.pem", b"-----BEGIN OPENSSH PRIVATE KEY-----", b"-----BEGIN PUBLIC KEY-----"),
        ("a.pem", b"-----BEGIN ENCRYPTED PRIVATE KEY-----", b"-----BEGIN X509 CRL-----"),
        ("k.asc", b"-----BEGIN PGP PRIVATE KEY BLOCK-----", b"-----BEGIN PGP SIGNATURE-----"),
        ("keys.txt key.txt", b"# age\nAGE-SECRET-KEY-1QQ", b"left\nright\n"),
        ("server.key", PEM_KEY, CERTIFICATE),
        ("master.key fernet.key", b"0123456789abcdef0123456789abcdef\n", b"a = 1\nb = 2\n"),
        ("raw.key", bytes(range(128, 160)), b"PK\3\4 slides of a talk " * 50),
        ("empty.key", b"x" * 16, b""),
        (
            ".npmrc",
            b"//registry.example.org/:_authToken=npm_123",
            b"//registry.example.org/:_authToken=${NPM_TOKEN}\nalways-auth=true\nauth-type=web\n",
        ),
        (".npmrc", b"_auth = abc=", b"registry=https://registry.example.org/\n_auth=\nx=y"),
        (".npmrc", b"//x/:_password=abc", b"save-exact=true\n"),
        (".yarnrc.yml", b'npmAuthToken: "abc"', b'npmAuthToken: "${TOKEN}"\nnodeLinker: pnp'),
        (".yarnrc", b'"//x/:_authToken" "abc"', b'registry "https://x.org"'),
        ("bunfig.toml", b'token = "abc"', b'token = "$npm_token"'),
        (".pypirc", b"[pypi]\nusername = __token__\npassword = pypi-abc", b"[pypi]\nusername = x"),
        (
            "pip.conf",
            b"index-url = https://me:pass@x.org/simple",
            b"index-url = https://x.org/simple\n",
        ),
        ("nuget.config", b'<add key="ClearTextPassword" value="a"/>', b'<add key="a" value="b"/>'),
        (
            "nuget.config",
            b'<add key="ClearTextPassword" value="a"/>',
            b'<add key="ClearTextPassword" value="%TOKEN%"/>',
        ),
        ("settings.xml", b"<password>x</password>", b"<password>${env.PASSWORD}</password>"),
        ("gradle.properties", b"signing.password=x", b"org.gradle.jvmargs=-Xmx4g"),
        ("local.properties", b"apiKey=abc", b"sdk.dir=/opt/android"),
        (".sentryclirc", b"[auth]\ntoken=abc", b"[defaults]\norg=x"),
        ("hosts.yml", b"github.com:\n  oauth_token: gho_1", b"all:\n  hosts:\n    a:\n"),
        ("credentials", b"[default]\naws_secret_access_key = abc", b"[default]\nregion = x"),
        ("credentials.toml", b'[registry]\ntoken = "cio"', b"[registry]\n"),
        ("auth.json", b'{"github-oauth": {"github.com": "ghp"}}', b'{"github-oauth": {}}'),
        ("auth.json", b'{"OPENAI_API_KEY": "sk-1"}', b'{"OPENAI_API_KEY": null}'),
        (
            (
                "shop-1a2b3c4d5e6f.json service-account.json sa.json gcp-key.json "
                "x-firebase-adminsdk-ab-01.json credentials.json"
            ),
            b'{"type": "service_account", "private_key": "-----BEGIN"}',
            b'{"name": "a", "version": "1"}',
        ),
        ("tokens.json", b'{"refresh_token":"1//x"}', b'{"color": {"value": "#fff"}}'),
        ("id.json deploy-keypair.json", repr(list(range(64))).encode(), b"[1, 2, 3]"),
    ],
)
def test_content_decides(names, secret, harmless):
    for name in names.split():
        rule = find_rule(name.upper())
        assert rule is not None, name
        assert looks_secret(name) is None
        assert rule.fits(secret), name
        assert not rule.fits(harmless), name


@pytest.mark.parametrize(
    ("name", "place", "secret", "harmless"),
    [
        ("config.json", ".docker", b'{"auths": {"x": {"auth": "YTpi"}}}', b'{"auths": {"x": {}}}'),
        ("config", ".git", b"url = https://me:tok@x.org/a", b"url = https://x.org/a.git"),
        ("config", ".git", b"url = https://ghp_0123456789012345@x.org", b"url = git@x.org:a/b"),
        ("config", ".git", b"extraheader = AUTHORIZATION: basic x", b"[core]\n\tbare = false"),
        ("config", ".bundle", b'BUNDLE_X: "https://a:b@x.org"', b'BUNDLE_PATH: "vendor"'),
    ],
)
def test_names_that_mean_something_in_one_place_only(name, place, secret, harmless):
    rule = find_rule(name)
    assert rule is not None
    assert place in rule.within
    assert rule.fits(secret)
    assert not rule.fits(harmless)


@pytest.mark.parametrize("name", [".env", "\udcff.pem", "a\nb.key", "-rf.env", "ü.p12", ".env.\n"])
def test_odd_names(name):
    assert find_rule(name) is not None


def test_directories():
    for name in (".aws", ".SSH", ".gnupg", ".kube", ".azure", ".secrets", ".password-store"):
        rule = find_directory_rule(name)
        assert rule is not None
        assert not rule.harmless
    for name in (".venv", "env", "venv", "node_modules", ".git", ".docker", "a.pem", "secrets2"):
        assert find_directory_rule(name) is None


@pytest.mark.parametrize(
    ("name", "harmless", "secret"),
    [
        (".env", "pyvenv.cfg conda-meta", "prod local pyvenv.cfg.bak"),
        (".env-py3", "pyvenv.cfg", "prod"),
        (".envs", "pyvenv.cfg", ".production"),
        (
            "Secrets",
            "__init__.py index.js manager.ts Vault.JAVA",
            "prod.yml token README.md key.pem load.sh",
        ),
        ("credentials", "a.go", "aws.json"),
    ],
)
def test_directories_that_may_be_something_else(name, harmless, secret):
    rule = find_directory_rule(name)
    assert rule is not None
    assert all(re.search(rule.harmless, inner) for inner in harmless.split())
    assert not any(re.search(rule.harmless, inner) for inner in secret.split())


def test_patterns_that_mean_a_secret():
    for pattern in (".env", ".env*", ".env.*", "*.pem", "*.env", "notes.txt", "server.*.key"):
        assert names_secret(pattern), pattern
    for pattern in ("*", "*.*", "*.json", "?env*x", "[a-z]*", "**"):
        assert not names_secret(pattern), pattern


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.pem", "a.pem x/y/A.PEM", "a.pem.txt a"),
        ("private.txt", "private.txt a/private.txt", "aprivate.txt"),
        ("config/prod.yml", "config/prod.yml", "prod.yml a/config/prod.yml config/a/prod.yml"),
        ("config/*.yml", "config/a.yml", "config/a/b.yml a.yml"),
        ("**/keys/*", "keys/a a/keys/b a/b/keys/c", "keys a/keys/b/c"),
        ("a/**/b", "a/b a/x/b a/x/y/b", "b x/a/b a/bb"),
        ("a/**", "a/x a/x/y a", "b"),
        ("**", "a a/b", ""),
        ("[ab].txt", "a.txt x/b.txt [ab].txt", "c.txt ab.txt"),
        ("?.txt", "a.txt", "ab.txt"),
        ("./a.txt", "a.txt", "b.txt"),
        (".", "", "a . .a"),
    ],
)
def test_globs(pattern, yes, no):
    globs = Globs(["never-this", pattern])
    for path in yes.split():
        assert globs.find(path, is_directory=False) == pattern, path
    for path in no.split():
        assert globs.find(path, is_directory=False) is None, path


def test_globs_for_directories_only():
    globs = Globs(["private/", "a/b/"])
    assert globs.find("x/private", is_directory=True) == "private/"
    assert globs.find("x/private", is_directory=False) is None
    assert globs.find("a/b", is_directory=True) == "a/b/"
    assert globs.find("private/x", is_directory=False) is None


PARTS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=5)
PATTERN = st.lists(st.sampled_from(["a", "b", "*", "?", "a*", "**"]), max_size=5)


def fits_slowly(parts, pattern):
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(fits_slowly(parts[at:], pattern[1:]) for at in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and fits_slowly(parts[1:], pattern[1:])


@given(parts=PARTS, pattern=PATTERN)
@example(parts=["a", "b"], pattern=["**", "b"])
def test_fits_is_what_it_says(parts, pattern):
    assert fits(parts, pattern) == fits_slowly(parts, pattern)


@given(st.text(max_size=40))
def test_any_name_has_an_answer(name):
    rule = find_rule(name)
    assert rule is None or rule.reason
    assert looks_secret(name) in {None, rule.reason if rule else None}


def test_hostile_content_takes_no_time():
    contents = [b"BEGIN ", b"token", b"_auth", b"https://a:", b"http://", b"[1,", b'"private_key"']
    contents += [b" ", b"a", b'-oauth" :', b"<password>", b"token \t"]
    names = ("a.pem", "a.key", ".npmrc", "auth.json", "sa.json")
    start = time.process_time()
    for piece in contents:
        for name in names:
            rule = find_rule(name)
            assert rule is not None
            rule.fits((piece * READ_BYTES)[:READ_BYTES])
    assert time.process_time() - start < 5


def test_hostile_pattern_takes_no_time():
    start = time.process_time()
    Globs(["/".join(["**", "a*"] * 30)]).find("/".join(["a"] * 200) + "/b", is_directory=False)
    Globs(["*a" * 60 + "b"]).find("a" * 255, is_directory=False)
    for name in ("a." * 2000, "." * 4000, "-" * 4000 + ".json", "key." * 1000 + "json", "_" * 4000):
        find_rule(name)
    assert time.process_time() - start < 5
