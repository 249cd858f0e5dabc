"""Removes what looks like a credential from texts: memory files, skills, strings in settings.

Pure. Recognizes forms, so that a credential without any recognizable form stays. Ordinary prose,
code, file names, git hashes and UUIDs stay, too. Every pattern is linear in the length of the text,
which may be hostile: a repetition is bounded unless nothing follows it in its pattern.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from enum import IntEnum
from itertools import pairwise

REMOVED = "[removed]"
Match = re.Match[str]


class Kind(IntEnum):
    """How surely a name is that of a credential."""

    NONE = 0
    WEAK = 1
    """`key`, `code`: only a value that looks random is one."""
    MEDIUM = 2
    """`LICENSE_KEY`"""
    TOKEN = 3
    PASSWORD = 4
    """May be a plain word."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAME_WORD = re.compile(r"[A-Z]{1,60}(?![a-z])|[A-Z]?[a-z]{1,60}|[0-9]{1,60}")
_PASSWORD = _words("password passwd passphrase pwd pass passcode pgpass")
_TOKEN = _words("secret token apikey credential credentials authorization bearer cookie")
_TOKEN_PAIRS = frozenset(
    {("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("auth", "key")}
    | {("session", "id")}
)
_WEAK = _words(
    "key pat sig signature auth code refresh access pin sas jwt tokens secrets session cookies uid"
    " user"
)
_JOINED = re.compile(
    r"(?:password|passwd|passphrase)$|((?:(?<!to)token|secret|(?:api|access|private|auth)key)$)"
)
_QUALIFIERS = _words(
    "value prod production dev staging test live main old new default string plain raw"
)
"""What may follow in a name: `token_prod`."""
_HARMLESS = _words(
    "name names file files path dir directory url uri env type limit limits count length size"
    " expiry expires mode method field helper command cmd ttl used budget usage id ids format"
    " prefix policy rotation provider manager store"
)
"""The last word of a name that is not that of a credential: `TOKEN_FILE`."""


def kind_of(name: str) -> Kind:
    """What a name, such as `dbPassword`, `STRIPE_KEY` or `--api-key`, stands for."""
    words = [word.lower() for word in _NAME_WORD.findall(name)]
    while words and (words[-1].isdigit() or (len(words) > 1 and words[-1] in _QUALIFIERS)):
        words.pop()
    if not words or (words[-1] in _HARMLESS and tuple(words[-2:]) not in _TOKEN_PAIRS):
        return Kind.NONE
    # The name of a variable may have more words, as `TOKEN_OF_CI` has.
    is_variable = name.isupper()
    last = set(words if is_variable else words[-1:])
    if not last.isdisjoint(_PASSWORD):
        return Kind.PASSWORD
    pairs = set(pairwise(words if is_variable else words[-2:]))
    if not last.isdisjoint(_TOKEN) or not pairs.isdisjoint(_TOKEN_PAIRS):
        return Kind.TOKEN
    if joined := _JOINED.search(words[-1]):
        return Kind.TOKEN if joined[1] else Kind.PASSWORD
    if words[-1] == "key" and len(words) > 1:
        return Kind.MEDIUM
    return Kind.WEAK if words[-1] in _WEAK else Kind.NONE


_TOKENS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?=[\w.-]{0,80}[0-9A-Z])(?:"
    r"(?:sk|pk|rk|whsec|npm|pypi|hf|xai|tvly|nvapi|gsk|pplx|csk|ctx7sk|fc|lin_api|apify_api|dckr_pat"
    r"|glpat|gldt|glrt|glsa|glc|github_pat|gh[pousr]|shp(?:at|ss|ca|pa)|do[opr]_v1|sntry[su]|figd"
    r"|xox[abeoprs]|xapp|sq0[a-z]{3}|sbp|sb_secret|ntn|ops|PMAK|phx|r8|jina|fm2|AIza|AKLT|tgp_v1)"
    r"[-_][A-Za-z0-9_+/=-]{12,}"
    r"|(?:SG|hv[sbr]|ya29|dp\.pt|dp\.st)\.[A-Za-z0-9_.-]{12,}"
    r"|1//0[A-Za-z0-9_-]{16,}"
    r"|AIza[A-Za-z0-9_-]{30,}|AT(?:ATT|CTT|BB)[A-Za-z0-9_=-]{16,}"
    r"|(?:AKIA|ASIA|LTAI)[A-Za-z0-9]{12,}"
    r"|AGE-SECRET-KEY-1[A-Za-z0-9]{16,}"
    r"|b3BlbnNzaC1rZXkt[A-Za-z0-9+/=]{0,8000}(?:\s{1,40}[A-Za-z0-9+/=]{40,200}){0,2000}"
    r"|(?:bot)?[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}"
    r"))"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{5,8000}\.[A-Za-z0-9_-]{5,8000}(?:\.[A-Za-z0-9_-]{0,8000}){0,3}"
)
_KEY_BEGIN = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----|Private-Lines: ?[0-9]{1,5}\r?\n"
)
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINES = re.compile(
    r"(?:(?:\\[nr]|\s){0,8}(?:[A-Za-z-]{1,40}: [^\n]{0,200}\n\s{0,8}){0,8}"
    r"(?:[ \t>]{0,40}[A-Za-z0-9+/=]{24,200}[ \t\r]{0,4}(?:\n|\Z|\\[nr])){1,2000}"
    r"(?:[ \t>]{0,40}[A-Za-z0-9+/]{1,64}={0,2}[ \t\r]{0,4}(?:\n|\Z))?)?"
)
_BARE = r"[^\s\"'`<>,;&|\\]{1,256}"
_VALUE = rf"(?:\\?\"(?P<double>[^\"\n]{{1,256}})|\\?'(?P<single>[^'\n]{{1,256}})|(?P<bare>{_BARE}))"
_ASSIGNED = re.compile(
    r"(?i)(?P<word>pass|pwd|secret|token|key|credential|bearer|cookie|session_?id|pat|sig|auth|jwt"
    r"|code|refresh|access|\bpin)(?P<after>[\w-]{0,40})"
    r"\\?[\"'`]?\]?[ \t]{0,20}(?::[ \t]?\w{1,20}[ \t]?=|=>|:=|[:=])[ \t]{0,20}" + _VALUE
)
_FLAGGED = re.compile(rf"(?<![\w-])--?(?P<name>[A-Za-z][\w-]{{2,60}})(?:=|[ \t]{{1,4}}){_VALUE}")
_HEADER = re.compile(
    r"(?<![\w-])(?:-H|--header)[ \t=]{0,3}(?P<quote>\\?[\"'])?(?P<name>[A-Za-z][\w-]{0,60}):"
    r"[ \t]{0,3}"
    r"(?P<value>(?(quote)[^\"'\n]{1,512}|[^\s\"'`)]{1,512}))"
)
_AUTHORIZATION = re.compile(
    r"(?i)authorization\\?[\"']?[ \t]{0,5}[:=][ \t]{0,5}\\?[\"']?"
    r"(?:basic|bearer|token|digest|api-?key|negotiate|key|oauth)[ \t=]{1,3}" + _VALUE
)
_SCHEME = re.compile(rf"(?i)(?<![A-Za-z])(?P<scheme>bearer|basic)[ \t]{{1,4}}(?P<bare>{_BARE})")
_USER = re.compile(
    r"(?<![\w-])(?:-u|-U|--user|--proxy-user)[ \t=]{0,2}[\"']?(?P<user>[^\s:\"'`]{1,99}):"
    r"(?P<value>[^\s\"'`]{1,256})"
)
_URL_USER = re.compile(
    r"://(?P<user>[^\s/:@\"'`<>]{0,255}(?::(?![0-9]{1,5}(?:[/\s]|$))[^\s\"'`<>]{0,255})?@)(?=[\w.\[-])"
)
_HOOK = re.compile(
    r"(?i)://(?:hooks\.[\w.-]{1,80}|(?:\w{1,20}\.)?discord(?:app)?\.com/api/webhooks"
    r"|[\w.-]{1,80}\.webhook\.office\.com)/(?P<value>[^\s\"'<>`)]{1,500})"
)
_QUERY = re.compile(r"[?&#](?P<name>[\w.-]{1,60})=(?P<value>[^&\s\"'#<>`]{1,512})")
_ELEMENT = re.compile(r"<(?P<name>[\w:.-]{1,60})(?:\s[^<>\n]{0,99})?>(?P<value>[^<\n]{1,256})<")
_NAMED = re.compile(
    r"[\"'](?P<name>[\w .-]{1,60})[\"'],?\s{0,20}[\"']?value[\"']?\s{0,5}[:=]\s{0,5}[\"']"
    r"(?P<value>[^\"'\n]{1,256})"
)
_BLOCK = re.compile(
    r"(?m)^(?P<indent>[ \t]{0,80})(?:- )?[\"']?(?P<name>[\w-]{1,60})[\"']?[ \t]{0,5}:[ \t]{0,5}"
    r"[|>][+-]?[ \t]{0,5}\n(?P<value>(?:(?P=indent)[ \t]{1,20}[^\n]{0,2000}\n?){1,200})"
)
_SPOKEN = re.compile(
    rf"(?i)(?:password|passwd|passphrase)(?: is)?[ \t]{{1,4}}[\"'`]?(?P<bare>{_BARE})"
)
_SSHPASS = re.compile(rf"sshpass[ \t]{{1,4}}-p[ \t]{{0,4}}{_VALUE}")
_WORD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9_+=~-]{15,}")
_PLACEHOLDER = re.compile(
    r"(?i)\$[a-z_]\w{0,99}(?:[^\w$].{0,400})?|\$[{(].{0,500}|%\w{1,99}%?|%\(.{0,500}|[{<\[(*.…].{0,500}"
    r"|x{3,500}|your?[-_ ].{0,500}|\\[$({\[sdw].{0,500}"
    r"|(?:.{0,99}[^a-z0-9])?(?:example|placeholder|redacted|change-?me|x{4,99})(?:[^a-z0-9].{0,99})?"
)
_CODE = re.compile(
    r"[A-Za-z_][\w.]{0,200}[(\[{].{0,500}|[A-Za-z_]\w{0,99}(?:\.[A-Za-z_]\w{0,99}){1,9}|[^\w]{1,99}"
    r"|(?:[A-Z][a-z]{1,30}){2,9}|[a-z]{1,30}(?:_[a-z]{1,30}){1,9}|[rbf]|0x[0-9A-Fa-f_]{1,99}"
)
"""A call, an attribute, a class or a variable."""
_PLAIN_WORDS = _words(
    "string required optional undefined password passwords secret secrets token tokens credential"
    " credentials disabled enabled function boolean integer provided prompted generated encrypted"
    " hashed unknown nothing default argument parameter authentication"
)
_HEX = re.compile(r"[0-9a-f]{7,128}|[0-9A-F]{7,128}")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HARMLESS_HEADER = re.compile(
    r"(?i)accept.{0,60}|content-.{0,60}|user-agent|host|origin|referer|cache-control|connection|range|if-.{0,60}"
    r"|.{0,60}-(?:version|beta|id|type|name)"
)
_REST = re.compile(r"[^\s\"'`<>,;&|]*")


def scrub_text(text: str) -> str:
    """A text, such as a memory file, with what looks like a credential replaced."""
    found = _without_keys(text)
    found = _replace(_BLOCK, found, lambda match: kind_of(match["name"]) >= Kind.MEDIUM)
    found = _replace(_URL_USER, found, _is_url_user, "")
    found = _TOKENS.sub(REMOVED, found)
    for pattern, is_secret in _PASSES:
        found = _replace(pattern, found, is_secret)
    return _WORD.sub(lambda match: REMOVED if _is_mixed(match[0], 20) else match[0], found)


def _replace(
    pattern: re.Pattern[str], text: str, is_secret: Callable[[Match], bool], by: str = REMOVED
) -> str:
    """Replaces the values that are secret. What is kept is searched again from its value on, which
    costs no more than the longest match for each.
    """
    pieces: list[str] = []
    done = at = 0
    while (match := pattern.search(text, at)) is not None:
        name = _value_group(match)
        if not is_secret(match):
            at = max(match.start(name), match.start() + 1)
            continue
        pieces += [text[done : match.start(name)], by]
        rest = _REST if name == "bare" else None
        done = at = match.end(name) if rest is None else _end(rest, text, match.end(name))
    return "".join([*pieces, text[done:]])


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a match that begins at `at` ends: `at` if there is none."""
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _value_group(match: Match) -> str:
    known = match.groupdict()
    names = ("value", "user", "double", "single", "bare")
    return next(name for name in names if known.get(name) is not None)


def _without_keys(text: str) -> str:
    """Without private keys; one without an end loses the lines that look like its content."""
    pieces: list[str] = []
    done = 0
    end = _KEY_END.search(text)
    for match in _KEY_BEGIN.finditer(text):
        if match.start() < done:
            continue
        while end is not None and end.start() < match.end():
            end = _KEY_END.search(text, end.end())
        following = _KEY_BEGIN.search(text, match.end())
        is_closed = end is not None and (following is None or end.start() < following.start())
        stop = end.end() if end is not None and is_closed else _end(_KEY_LINES, text, match.end())
        pieces += [text[done : match.start()], REMOVED]
        done = stop
    return "".join([*pieces, text[done:]])


def is_placeholder(value: str) -> bool:
    """Whether a value stands for one that is elsewhere, such as `$TOKEN` or `<key>`."""
    return _PLACEHOLDER.fullmatch(value) is not None


def _is_mixed(word: str, least: int) -> bool:
    """Whether letters of both cases and digits alternate as they do in no name."""
    if len(word) < least or not re.search("[0-9]", word):
        return False
    if not re.search("[a-z]", word) or not re.search("[A-Z]", word):
        return False
    return _changes(word) >= len(word) * 2 // 5


def _changes(word: str) -> int:
    """How often an upper-case letter, a lower-case letter or a digit follows one of another
    kind.
    """
    kinds = [
        "d" if c.isdigit() else "u" if c.isupper() else "l" if c.islower() else "" for c in word
    ]
    return sum(one != two for one, two in pairwise(kinds) if one and two)


def is_random(word: str) -> bool:
    """Whether a word looks generated: by its length, and by how digits and letters alternate.

    For values that have a name or a place of their own; hashes count.
    """
    if _UUID.fullmatch(word) or _TOKENS.search(word):
        return True
    if _is_mixed(word, 12):
        return True
    runs = re.findall(r"[A-Za-z0-9]{16,}", word)
    return any(
        re.search("[0-9]", run) and re.search("[A-Za-z]", run) and _changes(run) * 5 >= len(run)
        for run in runs
    ) or (len(word) >= 20 and word.isalpha() and _changes(word) * 2 > len(word))


def _is_hash(value: str) -> bool:
    return _HEX.fullmatch(value) is not None or _UUID.fullmatch(value) is not None


def _is_last(match: Match) -> bool:
    """Whether nothing but punctuation follows on the line."""
    end = match.end()
    rest = match.string[end : end + 20].partition("\n")[0]
    return not rest.strip(" \t\r\"'`,;\\)}")


def _is_secret_value(match: Match, kind: Kind, *, is_variable: bool = False) -> bool:
    group = _value_group(match)
    value = match[group]
    if kind is Kind.NONE or is_placeholder(value):
        return False
    if kind is Kind.WEAK:
        return is_random(value) and not _is_hash(value)
    is_quoted = group in {"double", "single"}
    if not is_quoted and _CODE.fullmatch(value.rstrip(")]}")):
        return is_variable and value.isalnum()
    has_digit = re.search("[0-9]", value) is not None
    if " " in value.strip():
        return kind is Kind.PASSWORD and has_digit
    if kind is Kind.MEDIUM:
        return is_random(value) or (has_digit and is_variable and len(value) >= 8)
    return _is_secret_word(
        value, kind, is_variable=is_variable, is_alone=is_quoted or _is_last(match)
    )


def _is_secret_word(value: str, kind: Kind, *, is_variable: bool, is_alone: bool) -> bool:
    if re.search("[0-9]", value) or is_random(value):
        return len(value) >= (4 if kind is Kind.PASSWORD else 8)
    if value.lower() in _PLAIN_WORDS or len(value) < 4:
        return False
    if is_variable:
        return True
    if value.isalpha():
        return is_alone and len(value) >= (8 if kind is Kind.PASSWORD else 16)
    # Hyphens and full stops are in prose, too.
    return kind is Kind.PASSWORD and len(value) >= 6 and bool(re.search(r"[^\w.:?!-]", value))


def _is_assigned_secret(match: Match) -> bool:
    start = match.start("word")
    before = re.search(r"[\w-]*\Z", match.string[max(0, start - 40) : start])
    name = f"{'' if before is None else before[0]}{match['word']}{match['after']}".lstrip("-")
    joint = match.string[match.end("after") : match.start(_value_group(match))]
    return _is_secret_value(match, kind_of(name), is_variable=name.isupper() and joint[:1] == "=")


def _is_flag_secret(match: Match) -> bool:
    kind = kind_of(match["name"])
    value = match[_value_group(match)]
    if kind is Kind.NONE or value.startswith("-") or is_placeholder(value):
        return False
    if len(value) >= 6 and re.search("[0-9]", value) and kind is not Kind.WEAK:
        return _CODE.fullmatch(value) is None
    return _is_secret_value(match, Kind.PASSWORD if kind is Kind.TOKEN else kind)


def _is_header_secret(match: Match) -> bool:
    value = re.sub(r"(?i)\A(?:basic|bearer|token|key)\s{1,9}", "", match["value"])
    return not _HARMLESS_HEADER.fullmatch(match["name"]) and not is_placeholder(value)


def _is_authorization(match: Match) -> bool:
    value = match[_value_group(match)]
    is_word = value.isalpha() and (value.islower() or value.istitle())
    return not is_placeholder(value) and len(value) >= 4 and (not is_word or _is_last(match))


def _is_scheme_secret(match: Match) -> bool:
    value = match["bare"]
    if is_placeholder(value):
        return False
    if match["scheme"].lower() == "basic":
        try:
            return b":" in base64.b64decode(value.rstrip("."), validate=True)
        except (binascii.Error, ValueError):
            return False
    is_long = len(value) >= 20 and _changes(value) > 5
    return is_long or (len(value) >= 8 and re.search("[0-9]", value) is not None)


def _is_user_secret(match: Match) -> bool:
    value = match["value"]
    if is_placeholder(value) or value.isdigit() or value.startswith("/") or value == match["user"]:
        return False
    if not value.isalpha() or not value.islower():
        return True
    line = match.string[max(0, match.start() - 200) : match.start()].rpartition("\n")[2]
    return "curl" in line


def _is_url_user(match: Match) -> bool:
    """A user name alone is one if it is long or has digits: `git@` stays."""
    user, colon, password = match["user"].removesuffix("@").partition(":")
    if colon:
        return not is_placeholder(password)
    return re.fullmatch(r"[A-Za-z._-]{1,24}", user) is None and not is_placeholder(user)


def _is_query_secret(match: Match) -> bool:
    kind, value = kind_of(match["name"]), match["value"]
    if kind is Kind.NONE or is_placeholder(value):
        return False
    if kind is Kind.WEAK:
        return is_random(value) or (len(value) >= 8 and not value.isalpha())
    return True


def _is_named_secret(match: Match) -> bool:
    value = match["value"].strip()
    if is_placeholder(value):
        return False
    kind = kind_of(match["name"])
    return is_random(value) if kind is Kind.WEAK else kind is not Kind.NONE and len(value) >= 4


def _is_spoken_secret(match: Match) -> bool:
    value = match["bare"].rstrip(".")
    has_both = re.search("[0-9]", value) is not None and re.search("[A-Za-z]", value) is not None
    if is_placeholder(value) or not has_both or len(value) < 8 or "-" in value:
        return False
    return _CODE.fullmatch(value) is None


_PASSES: tuple[tuple[re.Pattern[str], Callable[[Match], bool]], ...] = (
    (_HEADER, _is_header_secret),
    (_AUTHORIZATION, _is_authorization),
    (_SCHEME, _is_scheme_secret),
    (_USER, _is_user_secret),
    (_HOOK, lambda match: not is_placeholder(match["value"])),
    (_QUERY, _is_query_secret),
    (_FLAGGED, _is_flag_secret),
    (_SSHPASS, lambda match: not is_placeholder(match[_value_group(match)])),
    (_ELEMENT, _is_named_secret),
    (_NAMED, _is_named_secret),
    (_ASSIGNED, _is_assigned_secret),
    (_SPOKEN, _is_spoken_secret),
)
