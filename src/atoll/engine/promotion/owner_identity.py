"""Who decides: the owner as git and the system know them."""

from __future__ import annotations

import os
import pwd

from atoll.host import git
from atoll.model.state import ProjectRecord


def describe_owner(project: ProjectRecord) -> str:
    """`Name <address> (user)`."""
    name, address = git.identity(cwd=project.root)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    person = f"{name} <{address}>" if name and address else name or address
    return f"{person} ({user})" if person else user
