"""Finder of the C++ compiler and of torch's headers and libraries, without importing torch.

Differences between platforms are in pure functions of a system's and a machine's name: `default_flags`, `openmp_flags`,
`linker_flags`. So the code for each platform can be tested on any other.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from grader.core.errors import KitError
from grader.core.machine import answer

X86 = frozenset({"x86_64", "amd64"})
#: C++ standard on a machine without torch. Otherwise, the standard is that of torch's extensions.
DEFAULT_STANDARD = "c++17"
#: Recorded as the version if torch is missing.
ABSENT = "absent"
TORCH = "torch"
"""`Build.waits_for` of a submission that only a process with torch can judge, on a machine without torch."""


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler with its fixed settings. `family` is "gcc" or "clang".

    `cxx_standard` is the standard that this Python's torch uses for extensions, so that a file means the same with and
    without torch. On a machine without torch it is DEFAULT_STANDARD.
    """

    compiler: Path
    compiler_version: str
    family: str
    major: int
    cxx_standard: str
    system: str
    machine: str

    def file(self, name: str) -> Path | None:
        """Return the path of the file `name` among the compiler's own files; None if the compiler lacks it."""
        found = Path(answer([str(self.compiler), f"-print-file-name={name}"]).strip())
        # A compiler that lacks the file prints the name without a path.
        return found.resolve() if found.is_absolute() and found.exists() else None


@dataclass(frozen=True)
class TorchFiles:
    """Headers and libraries of torch, to build an object for a process with torch.

    `cxx11_abi` is torch's `_GLIBCXX_USE_CXX11_ABI`, None if it is unknown. `python_include_dir` is None if Python's
    development headers are missing: then the real torch/extension.h cannot be compiled.
    """

    version: str
    include_dirs: tuple[Path, ...]
    library_dir: Path
    cxx11_abi: int | None
    python_include_dir: Path | None


def default_flags(machine: str | None = None) -> tuple[str, ...]:
    """Return the course's published compiler flags, except the flag for OpenMP: `-O3`, and `-mavx` on x86-64."""
    avx = ("-mavx",) if (machine or platform.machine()).lower() in X86 else ()
    return ("-O3", *avx)


def openmp_flags(
    system: str, family: str, libomp: Path | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the compile flags and the link flags for OpenMP.

    Apple's clang has no OpenMP library: it uses Homebrew's libomp, whose folder is `libomp`.
    """
    if system != "Darwin" or family == "gcc":
        return ("-fopenmp",), ("-fopenmp",)
    compile_flags: tuple[str, ...] = ("-Xpreprocessor", "-fopenmp")
    link_flags: tuple[str, ...] = ("-lomp",)
    if libomp is not None:
        compile_flags += (f"-I{libomp / 'include'}",)
        link_flags = (f"-L{libomp / 'lib'}", *link_flags)
    return compile_flags, link_flags


def openmp_off_flags() -> tuple[str, ...] | None:
    """Return compile flags that switch OpenMP off if they follow the flags of `openmp_flags`.

    Functions of omp.h can still be linked. Returns None for Apple's clang, whose OpenMP flags cannot be undone.
    """
    tools = toolchain()
    return None if tools.system == "Darwin" and tools.family == "clang" else ("-fno-openmp",)


NO_COMPILER_AT_LINK = ("-fno-use-linker-plugin", "-fno-lto")
"""Flags of gcc that switch link-time compilation off. Both are needed: without the plug-in, collect2 still looks for
bytecode in objects."""


def no_compiler_at_link(tools: Toolchain) -> tuple[str, ...]:
    """Return flags that switch link-time compilation off. It would run an assembler on inputs that were not checked."""
    return NO_COMPILER_AT_LINK if tools.family == "gcc" and tools.system != "Darwin" else ()


def linker_flags(system: str, shim: Path, *, allow_undefined: bool) -> tuple[str, ...]:
    """Return the flags for linking an object for a process with torch. `shim` is the folder of exports.map.

    By default, each undefined function is an error. `allow_undefined`: True for a warning (on macOS, no message at
    all). The real pybind11 needs this, because the interpreter provides Python's functions.
    """
    if system == "Darwin":
        undefined = ("-undefined", "dynamic_lookup") if allow_undefined else ()
        return (*undefined, "-Wl,-exported_symbol,_gpt149_*")
    tolerant = ("-Wl,--warn-unresolved-symbols",) if allow_undefined else ()
    return (f"-Wl,--version-script={shim / 'exports.map'}", "-Wl,-z,defs", *tolerant)


def cache_root() -> Path:
    """Return the folder for objects and precompiled headers: $GPT149_CACHE, $XDG_CACHE_HOME/gpt149, ~/.cache/gpt149."""
    if explicit := os.environ.get("GPT149_CACHE"):
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpt149"


@functools.lru_cache(maxsize=4)
def _toolchain_for(compiler_name: str, search_path: str | None) -> Toolchain:
    compiler = shutil.which(compiler_name, path=search_path)
    if compiler is None:
        raise KitError(
            f"no C++ compiler ({compiler_name} is not on the PATH): install one, on Debian and Ubuntu with "
            "'apt install g++', on macOS with 'xcode-select --install'"
        )
    version = _compiler_version(compiler)
    family = "clang" if "clang" in version else "gcc"
    major = re.search(r"(\d+)\.\d+", version)
    return Toolchain(
        compiler=Path(compiler),
        compiler_version=version,
        family=family,
        major=int(major.group(1)) if major else 0,
        cxx_standard=_cxx_standard(_torch_root()),
        system=platform.system(),
        machine=platform.machine(),
    )


def toolchain() -> Toolchain:
    """Return the compiler named by $CXX (else g++, on macOS c++). Raises KitError if it does not run."""
    fallback = "c++" if platform.system() == "Darwin" else "g++"
    return _toolchain_for(os.environ.get("CXX") or fallback, os.environ.get("PATH"))


@functools.cache
def torch_files() -> TorchFiles:
    """Return the files of this interpreter's torch. Raises KitError without torch, or if its headers are missing."""
    root = _torch_root()
    if root is None:
        raise KitError("this Python has no torch: run 'make setup', or 'pip install torch'")
    return TorchFiles(
        version=_torch_version(root),
        include_dirs=_torch_include_dirs(root),
        library_dir=root / "lib",
        cxx11_abi=_cxx11_abi(root),
        python_include_dir=python_include_dir(),
    )


def torch_version() -> str:
    """Return the version of this interpreter's torch; ABSENT without torch."""
    root = _torch_root()
    return ABSENT if root is None else _torch_version(root)


def describe() -> dict[str, object]:
    """Return facts about the toolchain, for `result.json`."""
    found = toolchain()
    return {
        "compiler": found.compiler_version,
        "torch": torch_version(),
        "python": platform.python_version(),
        "cxx_standard": found.cxx_standard,
        "flags": [*default_flags(found.machine), "-fopenmp"],
        "system": found.system,
        "machine": found.machine,
    }


def libomp_prefix() -> Path | None:
    """Return the folder of Homebrew's libomp on macOS; None on other systems and if it is not installed."""
    if platform.system() != "Darwin":
        return None
    prefixes = (Path("/opt/homebrew/opt/libomp"), Path("/usr/local/opt/libomp"))
    return next((prefix for prefix in prefixes if prefix.is_dir()), None)


def _compiler_version(compiler: str) -> str:
    try:
        finished = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KitError(f"the C++ compiler {compiler} does not run: {error}") from error
    lines = finished.stdout.splitlines()
    if finished.returncode != 0 or not lines:
        raise KitError(f"the C++ compiler {compiler} does not answer --version: set CXX to one that works")
    return lines[0].strip()


def _torch_root() -> Path | None:
    """Return the folder of this interpreter's torch; None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _cxx_standard(torch_root: Path | None) -> str:
    builder = torch_root / "utils" / "cpp_extension.py" if torch_root is not None else None
    if builder is None or not builder.is_file():
        return DEFAULT_STANDARD
    standards = re.findall(r"-std=c\+\+(\d\d)\b", builder.read_text(errors="replace"))
    return f"c++{max(standards, key=int)}" if standards else DEFAULT_STANDARD


def _torch_version(torch_root: Path) -> str:
    found = re.search(r"__version__ = '([^']+)'", (torch_root / "version.py").read_text())
    return found.group(1) if found else "unknown"


def _torch_include_dirs(torch_root: Path) -> tuple[Path, ...]:
    include = torch_root / "include"
    if not (include / "ATen" / "core" / "Tensor.h").is_file():
        raise KitError("this torch was installed without its C++ headers: install the wheel from pytorch.org")
    return (include, include / "torch" / "csrc" / "api" / "include")


def _cxx11_abi(torch_root: Path) -> int | None:
    """Return torch's `_GLIBCXX_USE_CXX11_ABI`, 0 or 1; None if its files do not give it."""
    config = torch_root / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    found = re.search(r"_GLIBCXX_USE_CXX11_ABI=(\d)", config.read_text()) if config.is_file() else None
    return int(found.group(1)) if found else None


def python_include_dir() -> Path | None:
    """Return the folder of Python.h; None if Python's development headers are not installed."""
    include = Path(sysconfig.get_paths(vars={"base": sys.base_prefix})["include"])
    return include if (include / "Python.h").is_file() else None
