"""What imports may cost."""

from __future__ import annotations

import pytest

from atoll.host.intake.transfer import Allowance, ImportSize, OverLimitError, TransferLimits


def test_several_imports_share_one_allowance():
    allowance = Allowance(TransferLimits(size_bytes=100, objects=10))
    allowance.spend(ImportSize(objects=4, size_bytes=60))
    left = allowance.limits()
    assert (left.size_bytes, left.objects) == (40, 6)
    assert left.seconds is not None
    assert left.seconds <= 600
    allowance.spend(ImportSize(objects=1, size_bytes=40))
    with pytest.raises(OverLimitError):
        allowance.limits()


def test_an_import_over_the_limit_ends_all_others():
    allowance = Allowance()
    allowance.limits()
    allowance.exceeded()
    with pytest.raises(OverLimitError):
        allowance.limits()


def test_the_time_runs_for_all_of_them():
    with pytest.raises(OverLimitError):
        Allowance(TransferLimits(seconds=1e-9)).limits()
