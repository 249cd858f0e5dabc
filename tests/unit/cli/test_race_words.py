"""What `atoll race` takes for a prompt."""

from __future__ import annotations

import pytest

from atoll.cli.race import _require_not_mistyped
from atoll.model.errors import SpecError


def test_a_mistyped_command_starts_no_agents():
    with pytest.raises(SpecError, match=r"no command `list`; did you mean `ls`\?"):
        _require_not_mistyped(("list",), is_meant=False)
    _require_not_mistyped(("list",), is_meant=True)
    _require_not_mistyped(("fix the test",), is_meant=False)
    _require_not_mistyped((), is_meant=False)
