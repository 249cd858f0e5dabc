"""Kinds of layers by their names."""

from __future__ import annotations

import pytest

from atoll.model.layers import LayerKind, is_changed_inside, is_private


@pytest.mark.parametrize("kind", LayerKind)
def test_name_of_a_layer_says_its_kind(kind):
    name = kind.layer("0a1b")
    assert [other for other in LayerKind if other.matches(name)] == [kind]
    assert is_changed_inside(name) is (kind in {LayerKind.UPPER, LayerKind.SNAPSHOT})
    assert is_private(name) is (kind in {LayerKind.UPPER, LayerKind.SNAPSHOT, LayerKind.DIRTY})
    assert not kind.matches("")
