"""The owner's package stores in a capsule's view: each an overlay over the owner's directory.

A store that cannot be mounted like this, because of its filesystem or of the kernel, is left out:
the directory below the mount point is then a private store of the capsule.
"""

from __future__ import annotations

import os

from atoll.keeper import calls
from atoll.keeper.handles import Opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.model.enclosure import StoreOverlay

_MS_NOSUID, _MS_NODEV = 0x2, 0x4
_OPTIONS_LIMIT_BYTES = 4095
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def mount_store(mount: StoreOverlay, namespace: int) -> bool:
    """Mount a store; False if that is not possible here.

    With a `namespace` the owner's files are shown as those of the capsule's user, which needs
    ID-mapped mounts of the source's filesystem.
    """
    try:
        # Through no link: the engine has resolved them.
        source = calls.open_source(mount.source, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        if namespace < 0:
            _mount_overlay(mount, source)
        else:
            _mount_mapped(mount, source, namespace)
    except OSError:
        return False
    finally:
        os.close(source)
    return True


def _mount_mapped(mount: StoreOverlay, source: int, namespace: int) -> None:
    """Like `_mount_overlay`, over the source as the namespace shows it."""
    with Opened(calls.clone_mounts(source)) as tree:
        flags = calls.MOUNT_READ_ONLY | calls.MOUNT_NO_SETUID | calls.MOUNT_NO_DEVICES
        calls.change_mounts(tree, flags, namespace=namespace)
        # An overlay takes only what is mounted somewhere: here it will be covered.
        with Opened(os.open(mount.at, _PLACE)) as place:
            calls.attach_mounts(tree, place)
    try:
        with Opened(os.open(mount.at, _PLACE)) as mapped:
            _mount_overlay(mount, mapped)
    except OSError:
        calls.unmount(mount.at)
        raise


def _mount_overlay(mount: StoreOverlay, source: int) -> None:
    # By descriptor: the owner's path may contain what separates options.
    lowers = ":".join([*reversed(mount.lowers), f"/proc/self/fd/{source}"])
    options = f"lowerdir={lowers},upperdir={mount.upper},workdir={mount.work},{mount.options}"
    if len(os.fsencode(options)) > _OPTIONS_LIMIT_BYTES:
        raise OSError(f"{len(mount.lowers)} layers are more than one mount can name")
    calls.mount("atoll", mount.at, "overlay", _MS_NOSUID | _MS_NODEV, options)
