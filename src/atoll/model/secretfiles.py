"""Detects files that look like secrets: by name, and by content where a name is ambiguous.

Detection fails closed: an environment file counts whatever its content, because the owner does not
review it before it is carried. A name that harmless files share (`*.pem`, `.npmrc`) is decided by
content, so that certificates and settings stay with their packages. This module reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import NamedTuple

VERSION = 1
"""Increase it with every change of the rules: earlier decisions are made again."""
READ_BYTES = 1 << 16
"""How much of an ambiguous file is read."""

# Compiled on first use. Every repetition that can start at many offsets is bounded, because the
# content may be hostile.
_KEY = rb"BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY|AGE-SECRET-KEY-"
_LONE = _KEY + rb"|\A\s{0,99}\S{16,512}\s{0,99}\Z"
"""A key, or one long word and nothing else, as frameworks store theirs."""
# `${TOKEN}`, `%TOKEN%` and `<token>` are placeholders.
_SETTING = rb"""(?ix)
      (?:pass(?:word|wd|phrase)|secret|token|api[_-]?key|access[_-]?key|private[_-]?key
        |_auth|"auth"|npmauth\w{1,20})
      \w{0,40} ["']? (?:[ \t]{0,20}[:=]|[ \t](?=["'])) [ \t]{0,20}
      (?!["']?(?:true|false|null|none|yes|no)\b) ["']? [^\s"'${}<%\[\],;]
    | https?://[^/\s:@]{1,99}:[^/\s@${%]{1,99}@
    | https?://[^/\s:@]{20,255}@
    | extraheader[ \t]{0,20}=
    | <(?:password|passphrase|privatekey)>[ \t]{0,20}[^<\s$]
    | cleartextpassword["'] \s{1,20} value=["'][^"'%]
    | -(?:oauth|token)"\s{0,99}:\s{0,99}\{\s{0,99}"
    """
_ACCOUNT = (
    rb'(?i)"(?:private_?key|client_secret|refresh_token|access_token|secret_?key)"'
    rb'\s{0,99}:\s{0,99}"[^"]|\A\s{0,99}\[(?:\s{0,99}\d{1,3}\s{0,99},){31}'
)


class SecretFileRule(NamedTuple):
    """A kind of secret."""

    reason: str
    content: bytes | None = None
    """A regular expression that confirms a secret; None when the name is enough."""
    within: frozenset[str] = frozenset()
    """The directories in which the rule applies; empty for all."""
    has_examples: bool = False
    """Whether `.example` and similar parts of the name make it harmless."""

    def fits(self, content: bytes) -> bool:
        return self.content is None or re.search(self.content, content) is not None


_ENVIRONMENT = SecretFileRule("an environment file", has_examples=True)
_SECRETS = SecretFileRule("a file of secrets", has_examples=True)
_PASSWORDS = SecretFileRule("a file of passwords")
_PRIVATE_KEY = SecretFileRule("a private key")
_KEY_STORE = SecretFileRule("a key store")
_ACCESS_TOKEN = SecretFileRule("an access token")
_ACCESS_KEY = SecretFileRule("an access key")
_STATE = SecretFileRule("a Terraform state, which holds secrets in the clear")
_VARIABLES = SecretFileRule("a file of Terraform variables", has_examples=True)
_WALLET = SecretFileRule("a wallet")
_HISTORY = SecretFileRule("a history of commands")
_COOKIES = SecretFileRule("a browser's cookies")
_MAYBE_KEY = SecretFileRule("a private key", _KEY)
_MAYBE_SETTING = SecretFileRule("settings with a password or token", _SETTING)
_MAYBE_CREDENTIALS = SecretFileRule("a file of credentials", _SETTING)
_MAYBE_ACCOUNT = SecretFileRule("the key of an account", _ACCOUNT)

_NAMES: dict[str, SecretFileRule | None] = {
    name: rule
    for rule, names in (
        (_ENVIRONMENT, ".env .envrc .dev.vars local.settings.json"),
        (_SECRETS, ".secrets"),
        (_PASSWORDS, ".netrc _netrc .git-credentials .pgpass pgpass.conf .my.cnf .mylogin.cnf"),
        (_PASSWORDS, ".htpasswd .dockercfg .s3cfg .boto .databrickscfg wp-config.php"),
        (_PRIVATE_KEY, "secring.gpg"),
        (_ACCESS_TOKEN, ".vault-token .terraformrc terraform.rc credentials.tfrc.json"),
        (_ACCESS_TOKEN, ".credentials.json oauth_creds.json access_tokens.db credentials.db"),
        (_ACCESS_KEY, "rootkey.csv"),
        (_WALLET, "wallet.dat"),
        (_COOKIES, "cookies cookies.txt cookies.sqlite"),
        (_MAYBE_KEY, "key.txt keys.txt"),
        (_MAYBE_SETTING, ".npmrc .yarnrc .yarnrc.yml bunfig.toml .bunfig.toml .pypirc .condarc"),
        (_MAYBE_SETTING, "pip.conf pip.ini nuget.config settings.xml gradle.properties .gemrc"),
        (_MAYBE_SETTING, "local.properties .hgrc .sentryclirc .aider.conf.yml ngrok.yml"),
        (_MAYBE_SETTING, "hosts.yml rclone.conf .rclone.conf"),
        (_MAYBE_CREDENTIALS, "credentials credentials.toml credentials.yml credentials.yaml"),
        (_MAYBE_CREDENTIALS, "credentials.ini credentials.cfg auth.json auth.toml"),
        (_MAYBE_SETTING._replace(within=frozenset({".docker"})), "config.json"),
        (_MAYBE_SETTING._replace(within=frozenset({".git", ".bundle"})), "config"),
        # Android's debug keystore has a well-known password.
        (None, "debug.keystore"),
    )
    for name in names.split()
}
_ENDINGS = {
    ending: rule
    for rule, endings in (
        (_ENVIRONMENT, "env"),
        (_PRIVATE_KEY, "ppk pk8 agekey"),
        (_KEY_STORE, "p12 pfx jks bks keystore kdbx keychain keychain-db"),
        (_STATE, "tfstate"),
        (_VARIABLES, "tfvars"),
        (SecretFileRule("a VPN profile, which holds keys"), "ovpn"),
        (_WALLET, "wallet"),
        (_MAYBE_KEY, "pem crt cer cert p8 asc"),
        (SecretFileRule("a key", _LONE), "key"),
    )
    for ending in endings.split()
}
_FAMILIES = (
    (_ENVIRONMENT, r"\.env(?:rc)?[._-].*|\.dev\.vars\..*"),
    (_HISTORY, r"\.\w+_history"),
    (_SECRETS, r"\.?secrets?(?:\.[\w-]+)?\.(?:ya?ml|json|toml|ini|cfg|conf|properties|txt)"),
    (_PRIVATE_KEY, r"id_(?:rsa|dsa|ecdsa|ed25519|xmss)(?!.*\.pub\Z)(?:[._-].*)?"),
    (_PRIVATE_KEY, r"ssh_host_\w+_key"),
    (_WALLET, r"utc--.*"),
    (_ACCESS_KEY, r"client_secrets?(?:[._-].*)?\.json"),
    (_STATE, r".*\.tfstate\..*"),
    (_VARIABLES, r".*\.tfvars\.json"),
    (_ACCESS_KEY, r".*accesskeys\.csv"),
)
_FAMILY = re.compile("|".join(f"({name})" for _, name in _FAMILIES), re.DOTALL)
_ACCOUNT_NAME = (
    r"(?:.*[._-])?(?:service[_-]?account|credentials?|creds|adminsdk|gcp|gcloud|google|firebase|sa"
    r"|keys?|keyfile|keypair|id|oauth|tokens?)(?:[._-].*)?\.json|.*-[0-9a-f]{12}\.json"
)
# Example files such as `.env.example` and `secrets.sample.yml`.
_EXAMPLE = (
    r"(?:example|sample|template|default)[._-].*"
    r"|.*[._-](?:example|sample|template|tmpl|tpl|dist|defaults?|schema)(?:\.(?!local\Z)\w+)?"
)


class DirectoryRule(NamedTuple):
    """A kind of directory whose entire content is secret."""

    reason: str
    harmless: str = ""
    """A regular expression for an entry that shows the directory to be harmless."""


# A virtual environment may have this name, and packages may be called `secrets`.
_ENVIRONMENTS = DirectoryRule("environment files", r"\A(?:pyvenv\.cfg|conda-meta)\Z")
_STORE = DirectoryRule(
    "secrets",
    r"(?i)\.(?:py[cio]?|[cm]?[jt]sx?|vue|rb|php|go|rs|java|class|kt|scala|cs|exs?|erl|beam|swift"
    r"|c|cc|cpp|h|hpp|o|dart|lua)\Z",
)
_ENVIRONMENT_NAMES = (".env.", ".env-", ".env_")
_DIRECTORIES = {
    name: rule
    for rule, names in (
        (_ENVIRONMENTS, ".env .envs"),
        (_STORE, "secret secrets credentials"),
        (DirectoryRule("secrets"), ".secrets .password-store"),
        (DirectoryRule("keys"), ".ssh .gnupg"),
        (DirectoryRule("credentials of a cloud"), ".aws .azure .gcloud .oci .kube"),
        (DirectoryRule("a browser's sessions"), ".auth"),
    )
    for name in names.split()
}


REASONS = frozenset(
    rule.reason
    for rules in (_NAMES.values(), _ENDINGS.values(), (rule for rule, _ in _FAMILIES))
    for rule in rules
    if rule is not None
) | {_MAYBE_ACCOUNT.reason, _ENVIRONMENTS.reason, *(rule.reason for rule in _DIRECTORIES.values())}
"""All reasons why a file or directory counts as a secret."""


@lru_cache(maxsize=1 << 15)
def find_rule(name: str) -> SecretFileRule | None:
    """The rule for files of this name; if it has `content`, the content decides.

    Results are cached: the same few names make up most of a tree.
    """
    lower = name.lower()
    if lower in _NAMES:
        rule = _NAMES[lower]
    elif family := _FAMILY.fullmatch(lower):
        rule = _FAMILIES[(family.lastindex or 0) - 1][0]
    else:
        _, dot, ending = lower.rpartition(".")
        rule = _ENDINGS.get(ending) if dot else None
        if ending == "json" and re.fullmatch(_ACCOUNT_NAME, lower, re.DOTALL):
            rule = _MAYBE_ACCOUNT
    if rule is not None and rule.has_examples and re.fullmatch(_EXAMPLE, lower, re.DOTALL):
        return None
    return rule


def looks_secret(name: str) -> str | None:
    """Why a file is a secret by its name alone."""
    rule = find_rule(name)
    return rule.reason if rule is not None and rule.content is None and not rule.within else None


def find_directory_rule(name: str) -> DirectoryRule | None:
    """The rule for directories of this name; its `harmless` marker is an exception."""
    lower = name.lower()
    return _ENVIRONMENTS if lower.startswith(_ENVIRONMENT_NAMES) else _DIRECTORIES.get(lower)


def names_secret(pattern: str) -> bool:
    """Whether a pattern is meant for secrets, or only happens to match some.

    True for `.env`, `.env*` and `*.pem`; false for `*` and `*.json`.
    """
    bare = re.sub(r"\[[^]]*\]|[*?]", "", pattern)
    return bare == pattern or any(
        find_rule(text) or find_directory_rule(text) for text in (pattern, bare)
    )


def stands_for(piece: str, name: str) -> bool:
    """Whether one part of a pattern matches a name; `[id]` also matches itself literally."""
    return piece == name or fnmatchcase(name, piece)


def fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path matches a pattern, part by part; `**` matches any number of parts."""
    reached = {0}
    for piece in pattern:
        if piece == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and stands_for(piece, parts[at])}
        if not reached:
            return False
    return len(parts) in reached


class Globs:
    """Patterns as in a `.gitignore`, case-insensitive.

    Without an inner `/` a pattern matches a name at any depth, otherwise a path from the root. With
    a trailing `/` it matches directories only. A literal `*` is written `[*]`.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._split = tuple(_split(pattern) for pattern in patterns)
        # The last part alone rules out most names.
        self._may_fit = re.compile("|".join(_expression(parts[-1]) for parts in self._split)).match

    def find(self, path: str, *, is_directory: bool) -> str | None:
        """The first pattern that matches this path itself; matches of a parent do not count."""
        lower = path.lower()
        if self._may_fit(lower.rpartition("/")[2]) is None:
            return None
        return next(self._fitting(lower.split("/"), is_directory=is_directory), None)

    def _fitting(self, parts: Sequence[str], *, is_directory: bool) -> Iterator[str]:
        for pattern, split in zip(self._patterns, self._split, strict=True):
            if (is_directory or not pattern.endswith("/")) and fits(parts, split):
                yield pattern


def _expression(piece: str) -> str:
    return "" if piece == "**" else rf"{translate(piece)}|{re.escape(piece)}\Z"


def _split(pattern: str) -> tuple[str, ...]:
    parts = tuple(part for part in pattern.lower().split("/") if part not in {"", "."})
    return ("**", *parts) if len(parts) == 1 else parts or ("",)
