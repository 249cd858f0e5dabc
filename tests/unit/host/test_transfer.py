"""What imports may cost."""

from __future__ import annotations

import pytest

from atoll.host.transfer import Allowance, Brought, Limits, OverLimitError


def test_several_imports_share_one_allowance():
    allowance = Allowance(Limits(size_bytes=100, objects=10))
    allowance.spend(Brought(objects=4, size_bytes=60))
    left = allowance.limits()
    assert (left.size_bytes, left.objects) == (40, 6)
    assert left.seconds is not None
    assert left.seconds <= 600
    allowance.spend(Brought(objects=1, size_bytes=40))
    with pytest.raises(OverLimitError, match="together are more than 100B or 10 objects"):
        allowance.limits()


def test_an_import_over_the_limit_ends_all_others():
    allowance = Allowance()
    allowance.limits()
    allowance.exceeded()
    with pytest.raises(OverLimitError):
        allowance.limits()


def test_the_time_runs_for_all_of_them():
    with pytest.raises(OverLimitError):
        Allowance(Limits(seconds=1e-9)).limits()
