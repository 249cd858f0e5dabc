"""Kinds of layers. A layer's name is the letter of its kind and a digest or a random token."""

from __future__ import annotations

from enum import Enum


class LayerKind(Enum):
    """The value is the first letter of the layer's name."""

    COMMIT = "c"
    DEPENDENCIES = "d"
    DIRTY = "x"
    """The owner's uncommitted changes."""
    GIT = "g"
    """The private repository."""
    HISTORY = "h"
    """A store of git objects that capsules can read; kept beside the layers."""
    SUBMODULES = "m"
    RULES = "i"
    """The owner's private exclude rules."""
    COMPOSED = "b"
    """Several layers as one, for drivers that copy."""
    SNAPSHOT = "s"
    UPPER = "u"
    """Written by a capsule."""

    def layer(self, token: str) -> str:
        """The name of a layer of this kind."""
        return f"{self.value}{token}"

    def matches(self, layer: str) -> bool:
        return layer[:1] == self.value


def is_changed_inside(layer: str) -> bool:
    """Whether the layer holds what a capsule has changed."""
    return LayerKind.SNAPSHOT.matches(layer) or LayerKind.UPPER.matches(layer)


def is_private(layer: str) -> bool:
    """Whether the layer holds what is in no commit: the owner's changes or a capsule's."""
    return is_changed_inside(layer) or LayerKind.DIRTY.matches(layer)
