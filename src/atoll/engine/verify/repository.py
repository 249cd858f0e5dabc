"""Attempts on the owner's repository, by which the owner's git could be made to run something."""

from __future__ import annotations

from atoll.engine.verify.wall_test import Wall, WallTest

WALL = Wall(
    "git",
    (
        WallTest("G01", "change the configuration of the owner's repository", """
reach(given["git"]["config"], open_to_write)
"""),
        WallTest("G02", "plant a hook in the owner's repository", """
reach(given["git"]["hooks"], write_into)
"""),
        WallTest("G07", "change the owner's own configuration of git", """
reach(given["gitconfig"], open_to_write)
"""),
        WallTest("G18", "change branches and tags of the owner's repository", """
reach(given["git"]["refs"], write_into)
"""),
        WallTest("G18b", "change HEAD of the owner's repository", """
reach(given["git"]["head"], open_to_write)
"""),
        WallTest("G19", "add or damage objects of the owner's repository", """
reach(given["git"]["objects"], write_into)
"""),
        WallTest("G19b", "add or damage objects that the capsule's git reads", """
import subprocess
places = [given["git"]["path"] + "/objects"]
with contextlib.suppress(OSError):
    at = os.path.join(given["workspace"], ".git")
    with open(at + "/objects/info/alternates") as file:
        places += file.read().split("\\n")
identities = [entry["identity"] for entry in given["git"]["objects"]]
refusal = Held("they are not there")
for place in filter(None, places):
    try:
        status = os.stat(place)
        if [status.st_dev, status.st_ino] not in identities:
            continue
        write_into(place)
        gave_way(place)
    except OSError as error:
        refusal = error
raise refusal
"""),
        WallTest("G21", "read an object of the owner's repository that is not in the base", """
import subprocess, zlib
name = given["git"]["stray"] or not_tried("none could be written")
store = os.path.join(given["workspace"], ".git", "objects")
places = [given["git"]["path"] + "/objects", store]
with contextlib.suppress(OSError), open(store + "/info/alternates") as file:
    places += file.read().split("\\n")
refusal = Held("it is not there")
for place in filter(None, places):
    try:
        with open(os.path.join(place, name[:2], name[2:]), "rb") as file:
            if is_secret(zlib.decompress(file.read())):
                gave_way(place)
    except OSError as error:
        refusal = error
words = ["git", "-C", given["workspace"], "cat-file", "blob", name]
if is_secret(subprocess.run(words, capture_output=True).stdout):
    gave_way("by git")
raise refusal
"""),
        WallTest("G20", "remove worktrees of the owner's repository", """
reach(given["git"]["worktrees"], write_into)
"""),
    ),
)  # fmt: skip
