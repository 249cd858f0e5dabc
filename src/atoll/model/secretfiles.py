"""Which files look like secrets: by name, and by content where a name only raises suspicion.

Fails closed: an environment file is one whatever it holds, because nobody reads it before it
travels. A name that harmless files share (`*.pem`, `.npmrc`) is judged by what is inside, so that
certificates and settings stay with the packages that need them. Nothing here touches a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import NamedTuple

VERSION = 1
"""To be raised with the rules: what was judged by former ones is judged again."""
READ_BYTES = 1 << 16
"""How much of a suspicious file is looked at."""

# Compiled when first needed. Every repetition that could begin at many places is bounded, because
# files are written by anybody.
_KEY = rb"BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY|AGE-SECRET-KEY-"
_LONE = _KEY + rb"|\A\s{0,99}\S{16,512}\s{0,99}\Z"
"""A key as such, or one long word and nothing else, which is how frameworks keep theirs."""
# `${TOKEN}`, `%TOKEN%` and `<token>` stand for a value that is kept elsewhere.
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


class Rule(NamedTuple):
    """A kind of secret."""

    reason: str
    content: bytes | None = None
    """An expression for what makes a file a secret; None when its name is enough."""
    within: frozenset[str] = frozenset()
    """The directories in which the name means this; empty for all."""
    has_examples: bool = False
    """Whether `.example` and the like in a name make it harmless."""

    def fits(self, content: bytes) -> bool:
        return self.content is None or re.search(self.content, content) is not None


_ENVIRONMENT = Rule("an environment file", has_examples=True)
_SECRETS = Rule("a file of secrets", has_examples=True)
_PASSWORDS = Rule("a file of passwords")
_PRIVATE_KEY = Rule("a private key")
_KEY_STORE = Rule("a key store")
_ACCESS_TOKEN = Rule("an access token")
_ACCESS_KEY = Rule("an access key")
_STATE = Rule("a Terraform state, which holds secrets in the clear")
_VARIABLES = Rule("a file of Terraform variables", has_examples=True)
_WALLET = Rule("a wallet")
_HISTORY = Rule("a history of commands")
_COOKIES = Rule("a browser's cookies")
_MAYBE_KEY = Rule("a private key", _KEY)
_MAYBE_SETTING = Rule("settings with a password or token", _SETTING)
_MAYBE_CREDENTIALS = Rule("a file of credentials", _SETTING)
_MAYBE_ACCOUNT = Rule("the key of an account", _ACCOUNT)

_NAMES: dict[str, Rule | None] = {
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
        # Android's, with a password that everybody knows.
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
        (Rule("a VPN profile, which holds keys"), "ovpn"),
        (_WALLET, "wallet"),
        (_MAYBE_KEY, "pem crt cer cert p8 asc"),
        (Rule("a key", _LONE), "key"),
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
# A file that shows what another one looks like: `.env.example`, `secrets.sample.yml`.
_EXAMPLE = (
    r"(?:example|sample|template|default)[._-].*"
    r"|.*[._-](?:example|sample|template|tmpl|tpl|dist|defaults?|schema)(?:\.(?!local\Z)\w+)?"
)


class DirectoryRule(NamedTuple):
    """A kind of directory that is secret as a whole."""

    reason: str
    harmless: str = ""
    """An expression for a name below that shows it to be something else."""


# A virtual environment may have the name, and code is kept in packages called `secrets`.
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
"""All reasons for which a file or directory counts as a secret."""


@lru_cache(maxsize=1 << 15)
def find_rule(name: str) -> Rule | None:
    """The kind of secret that a file of this name is, or may be when the rule has `content`.

    The same few names make up most of a tree, which is why answers are kept.
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
    """The kind of secret that a directory of this name is, unless it holds something harmless."""
    lower = name.lower()
    return _ENVIRONMENTS if lower.startswith(_ENVIRONMENT_NAMES) else _DIRECTORIES.get(lower)


def names_secret(pattern: str) -> bool:
    """Whether the last part of a pattern means a secret, or only happens to cover one.

    `.env`, `.env*` and `*.pem` do; `*` and `*.json` do not.
    """
    bare = re.sub(r"\[[^]]*\]|[*?]", "", pattern)
    return bare == pattern or any(
        find_rule(text) or find_directory_rule(text) for text in (pattern, bare)
    )


def stands_for(piece: str, name: str) -> bool:
    """Whether one part of a pattern fits a name; `[id]` also fits itself, as routes are named."""
    return piece == name or fnmatchcase(name, piece)


def fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path fits a pattern, part by part; `**` stands for any number of parts."""
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
    """Patterns as in a `.gitignore`, in any case of letters.

    Without an inner `/` a pattern fits a name at any depth, otherwise a path from the root; with
    one at its end it fits directories only. A literal `*` is written `[*]`.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._split = tuple(_split(pattern) for pattern in patterns)
        # Most names are turned away by their last part alone.
        self._may_fit = re.compile("|".join(_expression(parts[-1]) for parts in self._split)).match

    def find(self, path: str, *, is_directory: bool) -> str | None:
        """The first pattern that fits this very path; one that fits a parent does not count."""
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
