"""The shipped suites are no test modules to pytest; their assertions shall explain themselves."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("atoll.testing.conformance")
