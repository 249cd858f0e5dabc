"""What programs rely on in a workspace: tried inside, by programs that assert.

Each test works on entries of its own, which `bench.TRACKED` and `bench.plant_ignored` have for it.
"""
# ruff: noqa: S101 - a test method says what must hold with `assert`

from __future__ import annotations

import json
import os

from atoll.testing.conformance.bench import DEEP, LONGEST, ODD_NAMES, TRACKED, BenchSuite


class FilesSuite(BenchSuite):
    """The workspace behaves like a directory of the owner's."""

    def test_it_lies_at_the_path_of_the_project(self) -> None:
        said = self.inside('print(os.getcwd()); print(git("rev-parse", "--show-toplevel"), end="")')
        assert said == f"{self.bench.root}\n{self.bench.root}\n"

    def test_new_directory_is_renamed(self) -> None:
        self.inside("""
            write("fresh/a/b"); write("fresh/c")
            os.rename("fresh", "renamed")
            assert names("renamed") == ["a", "a/b", "c"] and not os.path.exists("fresh")
            os.rename("renamed/a", "renamed/z")
            assert names("renamed") == ["c", "z", "z/b"]
        """)

    def test_directory_of_the_base_is_renamed_or_copied(self) -> None:
        """Some kernels answer EXDEV, on which every mover copies; nothing is half done then."""
        self.inside("""
            wanted = names("moving/plain")
            try:
                os.rename("moving/plain", "moving/renamed")
            except OSError as error:
                assert error.errno == errno.EXDEV, error
                assert names("moving/plain") == wanted
                shutil.move("moving/plain", "moving/renamed")
            assert names("moving/renamed") == wanted and not os.path.exists("moving/plain")
            assert read("moving/renamed/sub/b") == b"plain sub/b\\n"
        """)

    def test_mv_moves_a_directory_of_the_base(self) -> None:
        self.inside("""
            stamps = {n: os.lstat(f"moving/program/{n}").st_mtime_ns
                      for n in names("moving/program")}
            subprocess.run(["mv", "moving/program", "moving/moved"], check=True)
            assert not os.path.exists("moving/program")
            assert stamps == {n: os.lstat(f"moving/moved/{n}").st_mtime_ns
                              for n in names("moving/moved")}
        """)

    def test_file_of_the_base_is_renamed_over_another(self) -> None:
        self.inside("""
            write("over/one", b"1"); os.rename("over/one", "data/replaced")
            assert read("data/replaced") == b"1" and names("over") == []
        """)

    def test_directory_is_removed_and_made_again(self) -> None:
        self.inside("""
            assert len(os.listdir("deps/many")) == 200
            shutil.rmtree("deps/many")
            assert not os.path.exists("deps/many")
            os.mkdir("deps/many")
            assert os.listdir("deps/many") == []
            write("deps/many/0007", b"again")
            assert os.listdir("deps/many") == ["0007"]
        """)

    def test_file_becomes_a_directory_and_back(self) -> None:
        self.inside("""
            os.unlink("gone/file"); write("gone/file/below", b"b")
            shutil.rmtree("gone/by"); write("gone/by", b"now a file")
            assert names("gone") == ["by", "file", "file/below"]
            assert read("gone/by") == b"now a file"
            git("add", "--all", "gone")
            staged = git("diff", "--cached", "--no-renames", "--name-status", "--", "gone")
            assert staged.split() == ["A", "gone/by", "D", "gone/by/dir",
                                      "D", "gone/file", "A", "gone/file/below"], staged
            git("reset", "--quiet", "--", "gone")
            git("checkout", "--quiet", "--", "gone")
            assert read("gone/by/dir") == b"a file in a directory\\n"
            assert read("gone/file") == b"a file\\n"
        """)

    def test_hard_links(self) -> None:
        self.inside("""
            write("linked/one", b"1")
            os.link("linked/one", "linked/two")
            os.link("data/linked", "linked/base")
            assert os.path.samefile("linked/one", "linked/two")
            for a, b in (("linked/one", "linked/two"), ("data/linked", "linked/base")):
                assert os.stat(a).st_nlink == os.stat(b).st_nlink == 2
                write(b, b"x", "ab")
                assert read(a) == read(b) and read(a).endswith(b"x")
            os.unlink("linked/two")
            assert os.stat("linked/one").st_nlink == 1
        """)

    def test_hard_links_that_were_carried(self) -> None:
        self.inside("""
            assert os.path.samefile("deps/hard/one", "deps/hard/two")
            assert os.stat("deps/hard/one").st_nlink == 2
            os.unlink("deps/hard/one")
            assert read("deps/hard/two") == b"hard\\n"
        """)

    def test_symbolic_links(self) -> None:
        self.inside("""
            assert os.readlink("src/link") == "../README.md"
            assert read("src/link").startswith(b"# Sample")
            assert os.readlink("deps/dangling") == "nowhere" and not os.path.exists("deps/dangling")
            assert read("deps/link") == b"plain\\n"
            os.symlink("a" * 1000, "long-link")
            assert os.readlink("long-link") == "a" * 1000
            os.unlink("long-link")
        """)

    def test_absolute_links_into_the_project_stay_inside(self) -> None:
        self.inside("""
            assert os.readlink("absolute") == os.getcwd() + "/src"
            write("absolute/through", b"only here")
            assert read("src/through") == b"only here"
            write("deps/absolute", b"changed")
            assert read("deps/plain") == b"changed"
        """)

    def test_shared_mappings(self) -> None:
        self.inside("""
            write("data/mapped", bytes(4096), "ab")
            for path in ("data/mapped", write("mapped", bytes(65536))):
                with open(path, "r+b") as one, open(path, "r+b") as two:
                    first, second = mmap.mmap(one.fileno(), 0), mmap.mmap(two.fileno(), 0)
                    first[100:105] = b"hello"
                    assert second[100:105] == b"hello"
                    child = os.fork()
                    if child == 0:
                        second[200:205] = b"child"
                        os._exit(0)
                    os.waitpid(child, 0)
                    assert first[200:205] == b"child"
                    first.flush()
                assert read(path)[100:105] == b"hello" and read(path)[200:205] == b"child"
        """)

    def test_changes_are_announced(self) -> None:
        """Inotify on a directory and on a file of the base, of changes by another process."""
        self.inside("""
            libc = ctypes.CDLL(None, use_errno=True)
            watcher = libc.inotify_init1(os.O_NONBLOCK)
            MODIFY, CREATE, DELETE, MOVED_TO = 0x2, 0x100, 0x200, 0x80
            mask = MODIFY | CREATE | DELETE | MOVED_TO
            directory = libc.inotify_add_watch(watcher, b"src", mask)
            file = libc.inotify_add_watch(watcher, b"data/watched", mask)
            assert directory > 0 and file > 0
            subprocess.run(["sh", "-euc", "echo '#' >> data/watched; echo 1 > src/watched; "
                            "mv src/watched src/seen; rm src/seen"], check=True)
            events = set()
            while select.select([watcher], [], [], 2)[0]:
                data = os.read(watcher, 65536)
                while data:
                    watch, what, _, size = struct.unpack("iIII", data[:16])
                    events.add((watch, what, data[16:16 + size].rstrip(b"\\0")))
                    data = data[16 + size:]
                if (directory, DELETE, b"seen") in events:
                    break
            wanted = {(file, MODIFY, b""), (directory, CREATE, b"watched"),
                      (directory, MOVED_TO, b"seen"), (directory, DELETE, b"seen")}
            assert wanted <= events, events
        """)

    def test_holes_stay_holes(self) -> None:
        self.inside("""
            status = os.stat("deps/sparse")
            assert status.st_size == (16 << 20) + 3
            assert status.st_blocks * 512 < 1 << 20, status
            assert read("deps/sparse")[-3:] == b"end"
            with open("hole", "wb") as stream:
                stream.truncate(8 << 20)
            assert os.stat("hole").st_blocks * 512 < 1 << 20
        """)

    def test_attributes(self) -> None:
        self.inside("""
            assert os.getxattr("deps/marked", "user.atoll") == b"mark"
            for path in ("data/attributed", "data", write("attributed")):
                os.setxattr(path, "user.mine", b"\\0value")
                assert os.getxattr(path, "user.mine") == b"\\0value"
                assert os.listxattr(path) == ["user.mine"], os.listxattr(path)
                os.removexattr(path, "user.mine")
                refused(errno.ENODATA, os.getxattr, path, "user.mine")
        """)

    def test_modes(self) -> None:
        self.inside("""
            def mode(path):
                return oct(stat.S_IMODE(os.stat(path).st_mode))
            assert mode("deps/modes/private") == "0o400"
            assert mode("deps/modes/program") == "0o555"
            assert mode("deps/modes/shared") == "0o2775"
            assert mode("tool") == "0o755" and mode("README.md") == "0o644"
            assert os.geteuid() or mode("deps/modes/sealed") == "0o111"
            assert subprocess.check_output(["deps/modes/program"]) == b"program\\n"
            if os.geteuid():
                refused(errno.EACCES, write, "deps/modes/private")
            write("secret-program", b"#!/bin/true\\n")
            for path in ("secret-program", "data/moded"):
                for wanted in (0o400, 0o111, 0o000, 0o3777, 0o644):
                    os.chmod(path, wanted)
                    assert mode(path) == oct(wanted), (path, mode(path))
            os.mkdir("shared"); os.chmod("shared", 0o3770); os.mkdir("shared/below")
            assert mode("shared") == "0o3770" and mode("shared/below") == "0o2755"
        """)

    def test_program_that_cannot_be_read_runs(self) -> None:
        self.inside("""
            shutil.copy("/bin/true", "sealed-program"); os.chmod("sealed-program", 0o111)
            subprocess.run(["./sealed-program"], check=True)
            if os.geteuid():
                refused(errno.EACCES, read, "sealed-program")
            os.unlink("sealed-program")
        """)

    def test_times_are_those_of_the_owner(self) -> None:
        root = self.bench.root
        paths = [*TRACKED, "deps/plain", "deps/modes/program", "deps/link", "src/trace.log"]
        stamps = {path: (root / path).lstat().st_mtime_ns for path in paths}
        capsule = self.bench.new("times")
        self.bench.python(
            capsule,
            """
            wanted = json.loads(sys.argv[1])
            assert {path: os.lstat(path).st_mtime_ns for path in wanted} == wanted
            os.utime("README.md", ns=(1, 999_999_999))
            assert os.stat("README.md").st_mtime_ns == 999_999_999
            """,
            json.dumps(stamps),
        )

    def test_unusual_names(self) -> None:
        listed = json.dumps([name.hex() for name in ODD_NAMES])
        self.inside(
            """
            odd = sorted(bytes.fromhex(name) for name in json.loads(sys.argv[1]))
            assert sorted(os.listdir(b"deps/odd")) == odd, os.listdir(b"deps/odd")
            for name in odd:
                assert read(b"deps/odd/" + name + b"/file") == name
                write(b"deps/odd/" + name + b"/new", name)
                write(b"made-odd/" + name, name)
            assert sorted(os.listdir(b"made-odd")) == odd
            assert read("deps/long/" + sys.argv[2]) == b"long\\n"
            write("made-odd/" + "m" * 255)
            refused(errno.ENAMETOOLONG, write, "made-odd/" + "m" * 256)
            """,
            listed, LONGEST,
        )  # fmt: skip

    def test_deep_trees(self) -> None:
        self.inside(
            """
            assert read("cache/" + sys.argv[1] + "/end") == b"deep\\n"
            for name in sys.argv[1].split("/") * 2:
                os.mkdir(name); os.chdir(name)
            write("bottom", b"b")
            assert read("bottom") == b"b"
            """,
            DEEP,
        )

    def test_names_that_differ_in_case(self) -> None:
        self.inside("""
            assert (read("Case"), read("case")) == (b"upper\\n", b"lower\\n")
            os.rename("Case", "CASE")
            assert sorted(n for n in os.listdir() if n.lower() == "case") == ["CASE", "case"]
            os.rename("CASE", "Case")
        """)

    def test_empty_directories(self) -> None:
        self.inside("""
            assert names("deps/empty") == ["inner"]
            os.rmdir("deps/empty/inner"); os.mkdir("hollow"); os.rmdir("hollow")
            assert names("deps/empty") == []
        """)

    def test_what_cannot_be_carried_is_told(self) -> None:
        left_out = dict(self.bench.project.warm().carried.left_out)
        is_sealed = left_out.pop("deps/modes/sealed", None) == "it cannot be read"
        assert is_sealed == (not os.access(self.bench.root / "deps/modes/sealed", os.R_OK))
        assert left_out == {"deps/fifo": "a fifo", "deps/socket": "a socket"}
        self.inside(
            """
            assert os.path.exists("deps/modes/sealed") == (sys.argv[1] == "readable")
            assert not os.path.lexists("deps/fifo") and not os.path.lexists("deps/socket")
            os.mkfifo("pipe")
            child = os.fork()
            if child == 0:
                write("pipe", b"through"); os._exit(0)
            assert read("pipe") == b"through"
            os.waitpid(child, 0)
            listener = socket.socket(socket.AF_UNIX); listener.bind("door"); listener.listen()
            client = socket.socket(socket.AF_UNIX); client.connect("door")
            served, _ = listener.accept()
            client.sendall(b"knock"); assert served.recv(5) == b"knock"
            """,
            "sealed" if is_sealed else "readable",
        )

    def test_files_without_a_name(self) -> None:
        self.inside("""
            before = names("src")
            handle = os.open("src", os.O_TMPFILE | os.O_RDWR, 0o600)
            os.write(handle, b"nameless")
            assert names("src") == before
            # Python follows the link only if it is given a directory.
            os.link(f"/proc/self/fd/{handle}", "src/named", src_dir_fd=handle)
            assert read("src/named") == b"nameless"
            os.unlink("src/named")
        """)

    def test_space_is_reserved_and_given_back(self) -> None:
        self.inside("""
            for path in ("data/reserved", write("reserved")):
                with open(path, "r+b") as stream:
                    os.posix_fallocate(stream.fileno(), 0, 1 << 20)
                    assert os.stat(path).st_size == 1 << 20
                    assert os.stat(path).st_blocks * 512 >= 1 << 20
                    libc = ctypes.CDLL(None, use_errno=True)
                    size = ctypes.c_long(1 << 20)
                    assert libc.fallocate(stream.fileno(), 3, ctypes.c_long(0), size) == 0
                    assert os.stat(path).st_blocks * 512 < 1 << 20
                    stream.truncate(3)
        """)

    def test_file_lives_on_while_it_is_open(self) -> None:
        self.inside("""
            stream = open("data/open", "r+b")
            os.unlink("data/open")
            assert stream.read() == b"open\\n"
            stream.write(b"more"); stream.flush()
            assert os.fstat(stream.fileno()).st_nlink == 0
            write("data/open", b"another")
            stream.seek(0)
            assert stream.read() == b"open\\nmore"
        """)

    def test_identity_of_a_file_is_stable(self) -> None:
        """Archivers and watchers take a file for another when its number changes."""
        self.inside("""
            for path in ("data/steady", "with space", "README.md"):
                before = os.stat(path)
                os.chmod(path, stat.S_IMODE(before.st_mode))
                if os.path.isfile(path):
                    write(path, b"more", "ab")
                after = os.stat(path)
                assert (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino), path
            for entry in os.scandir("."):
                assert entry.inode() == entry.stat(follow_symlinks=False).st_ino, entry.name
        """)

    def test_appended_copied_and_synced(self) -> None:
        self.inside("""
            with open("data/appended", "ab") as stream:
                stream.write(b"appended"); stream.flush(); os.fsync(stream.fileno())
            with open("data/appended", "rb") as source, open("ranged", "wb") as target:
                count = os.copy_file_range(source.fileno(), target.fileno(), 1 << 20)
                assert count == os.stat("data/appended").st_size
            assert read("ranged") == read("data/appended")
            handle = os.open("data", os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(handle); os.sync()
        """)
