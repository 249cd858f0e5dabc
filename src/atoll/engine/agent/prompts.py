"""What a person writes to an agent: checked, and shortened to a name or the subject of a commit."""

from __future__ import annotations

import re

from atoll.model.errors import SpecError
from atoll.model.names import printable, slug

LIMIT_BYTES = 4 << 20
_NAME_WORDS = 4
_NAME_LENGTH = 32
_SUBJECT_LENGTH = 72
_FORMS = {"prompt": 'atoll spawn AGENT "what to do"', "message": 'atoll tell NAME "MESSAGE"'}
_SMALL_WORDS = frozenset({"a", "an", "and", "in", "of", "on", "please", "the", "to", "with"})
_TERMINAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def require_prompt(given: str | bytes, *, what: str = "prompt") -> str:
    """The text of a prompt. Raises SpecError for one that no agent can get."""
    try:
        # Words of a command line that are not UTF-8 hold lone surrogates.
        content = given if isinstance(given, bytes) else given.encode()
        text = content.decode()
    except UnicodeError:
        raise SpecError(f"the {what} is not UTF-8 text", hint="iconv -t UTF-8 FILE") from None
    if len(content) > LIMIT_BYTES:
        raise SpecError(
            f"the {what} is longer than {LIMIT_BYTES >> 20} MiB",
            hint="put the material into a file of the project and name it",
        )
    if "\0" in text:
        raise SpecError(f"the {what} contains a null byte")
    if not text.strip():
        raise SpecError(f"the {what} is empty", hint=_FORMS.get(what))
    return text


def require_typable(text: str) -> str:
    """Raises SpecError for a message that would do more than type text into a terminal."""
    if _TERMINAL.search(text):
        raise SpecError("the message contains control characters, which a terminal would interpret")
    return text


def find_name(prompt: str) -> str:
    """A name for the capsule of a task: the first words of its prompt."""
    line = next((line for line in prompt.splitlines() if slug(line)), "")
    words = [word for word in slug(line[:500]).split("-") if word]
    telling = [word for word in words if word not in _SMALL_WORDS] or words
    name = ""
    for word in telling[:_NAME_WORDS]:
        longer = f"{name}-{word}".strip("-")
        if len(longer) > _NAME_LENGTH:
            break
        name = longer
    return name or slug("-".join(telling))[:_NAME_LENGTH].strip("-") or "task"


def subject_of(prompt: str) -> str:
    """The first line of a prompt, as the subject of a commit."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    plain = printable(line)
    return plain if len(plain) <= _SUBJECT_LENGTH else plain[: _SUBJECT_LENGTH - 1] + "…"
