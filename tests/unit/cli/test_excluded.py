from __future__ import annotations

from atoll.cli.excluded import render_excluded
from atoll.engine.project.excluded import Excluded


def test_listed_secrets_need_only_the_option() -> None:
    found = Excluded(secrets=(".env",), untracked_secrets=(".env",), carry=("**", ".env"))
    line = render_excluded(found, dirty=False)
    assert line == "left out: 1 that looks like a secret (.env), include with --dirty"


def test_long_lists_are_bounded() -> None:
    secrets = tuple(f"k{number}/id_rsa" for number in range(40))
    line = render_excluded(Excluded(secrets=secrets), dirty=True)
    assert line.count("/id_rsa") == 3 + 12
    assert line.endswith('"k11/id_rsa"]` under [project] in atoll.toml, and so on (40)')
    listed = tuple(f"d{number}" for number in range(40))
    line = render_excluded(Excluded(secrets=secrets[:1], carry=listed), dirty=True)
    assert line.endswith(
        'include with `"k0/id_rsa"` added to `carry` under [project] in atoll.toml'
    )
