"""Lines that an agent can plant in its repository, each with the command of git that believes them.

`RECORD` stands for a shell command that leaves a trace. A block begins with `== name: command`.
"""

from __future__ import annotations

MISSING = "1" * 40
_TEXT = r"""
== clean-filter: git status
git config filter.e.clean 'RECORD; cat'
mkdir -p .git/info; echo '*.md filter=e' >>.git/info/attributes
printf '# Sampel\n' >README.md; touch -d '+20 sec' README.md
== process-filter: git diff; git add .
git config filter.p.process 'RECORD'
echo '*.md filter=p' >>.gitattributes
printf '# Sampel\n' >README.md; touch -d '+20 sec' README.md
== lfs-filter: git status
git config filter.lfs.clean 'RECORD; cat'
git config filter.lfs.required true
echo '*.py filter=lfs diff=lfs merge=lfs -text' >>.gitattributes
printf 'one = 2\n' >src/calc.py; touch -d '+20 sec' src/calc.py
== fsmonitor: git status
git config core.fsmonitor 'RECORD; false'
== textconv: git diff
git config diff.t.textconv 'RECORD; cat'
echo '*.md diff=t' >>.gitattributes
echo more >>docs/guide.md
== external-diff: git diff
git config diff.external 'RECORD; true'
echo more >>docs/guide.md
== diff-command: git diff
git config diff.d.command 'RECORD; true'
echo '*.md diff=d' >>.gitattributes
echo more >>docs/guide.md
== hooks: git commit --allow-empty -m x
mkdir -p .git/hooks; for h in pre-commit commit-msg post-commit post-checkout post-rewrite \
  reference-transaction post-index-change pre-auto-gc prepare-commit-msg; do
printf '#!/bin/sh\nRECORD\n' >.git/hooks/$h; chmod 755 .git/hooks/$h; done
== hooks-path: git commit --allow-empty -m x
mkdir -p hooked; for h in pre-commit post-checkout reference-transaction post-index-change; do
printf '#!/bin/sh\nRECORD\n' >hooked/$h; chmod 755 hooked/$h; done; git config core.hooksPath hooked
== include: git status
printf '[core]\nfsmonitor = "RECORD; false"\n' >.git/more
git config include.path more
== include-if: git status
printf '[core]\nfsmonitor = "RECORD; false"\n' >.git/more
git config 'includeIf.gitdir:/.path' "$PWD/.git/more"
== worktree-config: git status
git config core.repositoryformatversion 1; git config extensions.worktreeConfig true
git config --worktree core.fsmonitor 'RECORD; false'
== promisor: git cat-file -e MISSING
git config core.repositoryformatversion 1; git config extensions.partialClone o
git config remote.o.url "$PWD"; git config remote.o.promisor true
git config remote.o.uploadpack 'RECORD; false'
== promisor-ext: git cat-file -e MISSING
git config core.repositoryformatversion 1; git config extensions.partialClone o
git config protocol.ext.allow always; git config remote.o.promisor true
printf '#!/bin/sh\nRECORD\n' >.git/ext; chmod 755 .git/ext
git config remote.o.url "ext::$PWD/.git/ext"
== ssh-command: git cat-file -e MISSING
git config core.repositoryformatversion 1; git config extensions.partialClone o
git config remote.o.url ssh://host.invalid/x; git config remote.o.promisor true
git config core.sshCommand 'RECORD; false'
== signature: git log -1
git config log.showSignature true; git config gpg.program "$PWD/.git/gpg"
printf '#!/bin/sh\nRECORD\n' >.git/gpg; chmod 755 .git/gpg
S='gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----'
C=$(git cat-file commit HEAD | sed "/^committer/a $S" | git hash-object -t commit -w --stdin)
git update-ref HEAD $C
== sign-commits: git commit --allow-empty -m x
git config commit.gpgSign true; git config gpg.program "$PWD/.git/gpg"
printf '#!/bin/sh\nRECORD\nexit 1\n' >.git/gpg; chmod 755 .git/gpg
== nested: git status
git init -q sub; git -C sub -c user.name=a -c user.email=a commit -q --allow-empty -m s
git -C sub config core.fsmonitor 'RECORD; false'; git add sub 2>/dev/null
== submodule-update: git submodule update
git init -q mod; git -C mod -c user.name=a -c user.email=a commit -q --allow-empty -m s
git config -f .gitmodules submodule.m.path mod; git config -f .gitmodules submodule.m.url ./mod
git add .gitmodules mod 2>/dev/null
git config submodule.m.update '!RECORD; :'
git config submodule.m.active true; git config submodule.m.url ./mod
git -C mod -c user.name=a -c user.email=a commit -q --allow-empty -m t
== alternate-refs: git fetch -q ./.git/other.git n
git config core.alternateRefsCommand 'RECORD; :'
git clone -q --bare . .git/other.git 2>/dev/null
C=$(git commit-tree -m y $(git write-tree)); git push -q .git/other.git $C:refs/heads/n
echo "$PWD/.git/other.git/objects" >>.git/objects/info/alternates
== editor: git commit --allow-empty
git config core.editor 'RECORD; false'
git config sequence.editor 'RECORD'
== trailer: echo x | git interpret-trailers --trailer x=1
git config trailer.x.key X; git config trailer.x.command 'RECORD'
git config trailer.x.ifmissing add
== credential: printf 'protocol=https\nhost=x.invalid\n\n' | git credential fill
git config credential.helper '!RECORD; false'
== embedded-bare: cd embedded && git status
git init -q --bare embedded; git -C embedded config core.bare false
git -C embedded config core.worktree ..; git -C embedded config core.fsmonitor 'RECORD; false'
== pointer-file: cd pointed && git status
git init -q .git/elsewhere; git -C .git/elsewhere config core.fsmonitor 'RECORD; false'
mkdir -p pointed; echo "gitdir: $PWD/.git/elsewhere/.git" >pointed/.git
"""


def _parse(text: str) -> dict[str, tuple[str, str]]:
    found = {}
    for block in text.replace("MISSING", MISSING).split("\n== ")[1:]:
        head, _, lines = block.partition("\n")
        name, _, command = head.partition(": ")
        found[name] = (lines + "\n", command)
    return found


PLANTS = _parse(_TEXT)
"""By name: the lines, and what sets them off."""
