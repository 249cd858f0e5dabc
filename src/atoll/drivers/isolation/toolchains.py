"""Which toolchains of the machine a walled capsule sees, besides those of the system.

Found by their usual places below HOME, by the variables that name their roots, by PATH, and by
the virtual environments in the owner's checkout. The last are files that came with a project and
are not believed: they can point to an interpreter that is one, and to nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from atoll.host import files
from atoll.model.errors import StateError

_BELOW_HOME = (
    ".pyenv", ".nvm", ".rustup", ".cargo/bin", ".volta", ".asdf", ".sdkman", ".rbenv", ".nodenv",
    ".goenv", ".jenv", ".juliaup", ".ghcup", ".elan", ".opam", ".bun", ".deno", ".dotnet",
    ".linuxbrew", ".local/bin", ".local/lib", ".local/share/uv", ".local/share/mise",
    ".local/share/pipx", ".local/share/pnpm", ".local/share/fnm", ".local/pipx", ".fnm", ".poetry",
    ".pixi/bin", ".pixi/envs", "go/bin", "sdk", "miniconda3", "miniforge3", "anaconda3", ".conda",
    ".npm-global", "n", ".swiftly", ".zvm",
)  # fmt: skip
"""Where people have their compilers and interpreters below their homes. `.cargo` as a whole is
not among them, nor is any cache: they hold tokens, or are written through to the owner's."""
_ROOTS = (
    "PYENV_ROOT", "NVM_DIR", "RUSTUP_HOME", "VOLTA_HOME", "ASDF_DATA_DIR", "ASDF_DIR", "SDKMAN_DIR",
    "RBENV_ROOT", "GOROOT", "JAVA_HOME", "MISE_DATA_DIR", "UV_PYTHON_INSTALL_DIR", "FNM_DIR",
    "BUN_INSTALL", "DENO_INSTALL", "DOTNET_ROOT", "PNPM_HOME", "ANDROID_HOME",
)  # fmt: skip
"""Variables of the owner's that say where a toolchain is."""
_BESIDE_PROGRAMS = ("lib", "lib64", "libexec", "share", "include")
"""What the programs in a `bin` need of what lies beside it."""
_ENVIRONMENTS = (".venv", "venv", "env")
_MARK = "pyvenv.cfg"


def find(owner: Mapping[str, str], checkout: str) -> list[str]:
    """Directories with the owner's programs and what these need. May name one several times."""
    home = owner.get("HOME", "")
    is_known = os.path.isabs(home)
    found = [f"{home}/{name}" for name in _BELOW_HOME] if is_known else []
    found += [place for key in _ROOTS if os.path.isabs(place := owner.get(key, ""))]
    for place in owner.get("PATH", "").split(":"):
        if os.path.isabs(place):
            found += _around(os.path.normpath(place), home)
    for prefix in _interpreters(checkout):
        found += _around(f"{prefix}/bin", home)
    too_much = {"/", os.path.normpath(home) if is_known else "/", os.path.dirname(home)}
    places = (os.path.normpath(place) for place in found)
    return [place for place in places if place not in too_much and os.path.isdir(place)]


def _around(programs: str, home: str) -> Iterator[str]:
    """A directory of programs with what belongs to it."""
    yield programs
    prefix, name = os.path.split(programs)
    if name == "shims":
        # They only look for the programs, which lie beside them.
        yield f"{prefix}/versions"
        yield f"{prefix}/libexec"
    elif name in ("bin", "sbin") and prefix not in (home, "/"):
        yield from (f"{prefix}/{part}" for part in _BESIDE_PROGRAMS)


def _interpreters(checkout: str) -> Iterator[str]:
    """The installations that the virtual environments of a project were made with."""
    for name in _ENVIRONMENTS:
        try:
            content = files.read_regular(Path(checkout, name, _MARK), limit_bytes=1 << 16)
        except (OSError, StateError):
            continue
        for line in (content or b"").decode(errors="replace").splitlines():
            key, _, value = line.partition("=")
            programs = os.path.normpath(value.strip())
            if key.strip() == "home" and os.path.basename(programs) == "bin":
                named = (os.path.dirname(programs), os.path.dirname(os.path.realpath(programs)))
                yield from filter(_is_installation, dict.fromkeys(named))


def _is_installation(prefix: str) -> bool:
    """Whether a Python lives there: its programs, and its library beside them."""
    try:
        libraries = os.listdir(f"{prefix}/lib")
    except OSError:
        return False
    return any(
        name.startswith("python3.")
        and os.path.isfile(f"{prefix}/lib/{name}/os.py")
        and os.access(f"{prefix}/bin/{name}", os.X_OK)
        for name in libraries
    )
