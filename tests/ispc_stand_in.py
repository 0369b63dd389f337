"""A script in place of `ispc`: it refuses empty files as ispc 1.22 does, and translates the tests' kernels to C++."""

import hashlib
import os
import tempfile
from pathlib import Path

VERSION = "Intel(r) Implicit SPMD Program Compiler (Intel(r) ISPC), 1.22.0 (stand-in)"
STAND_IN = rf"""#!/bin/sh
case "$*" in *--version*) echo '{VERSION}'; exit 0;; esac
case "$*" in *' --arch='*' --target='*'module.ispc -h module_ispc.h -o module_ispc.o') ;; *) exit 2;; esac
grep -q '[^[:space:]]' module.ispc || {{ echo 'module.ispc:1:1: Error: nothing to compile'; exit 1; }}
defines=$(for word in "$@"; do case $word in -D*) echo "$word";; esac; done)
{{
    echo '#line 1 "module.ispc"'
    sed 's/^export/extern "C"/; s/uniform //g; s/programIndex/0/g
         s/foreach (\([a-z]*\) = \(.*\) \.\.\. \(.*\))/for (int \1 = \2; \1 < \3; \1++)/' module.ispc
}} > translated.cpp
{{
    echo '#pragma once'
    echo 'namespace ispc {{ extern "C" {{'
    sed -n 's/^export \([^{{]*\) {{$/extern \1;/p' module.ispc | sed 's/uniform //g'
    echo '}} }}'
}} > module_ispc.h
exec g++ -O2 -fPIC $defines -c translated.cpp -o module_ispc.o
"""
#: An `ispc` that fails. At the front of the PATH, it hides an installed ispc.
BROKEN = "#!/bin/sh\necho 'error while loading shared libraries: libtinfo.so.5' >&2\nexit 127\n"

PROGRAM = """// Real ISPC, too.
export void scaled(uniform float values[], uniform int count, uniform float by) {
    foreach (k = 0 ... count) {
        values[k] *= by;
    }
}
"""
#: Statements for the beginning of a kernel. They make its result wrong unless the ISPC function `scaled` works.
USES_IT = (
    "float eight[8] = {1, 2, 3, 4, 5, 6, 7, 8}; ispc::scaled(eight, 8, 2.0f); "
    "for (int k = 0; k < 8; k++) if (eight[k] != 2.0f * (k + 1)) N = 1;"
)
INCLUDE = '#include "module_ispc.h"\n'


def on_the_path(text: str) -> str:
    """Write the script `text` as a program `ispc` that every user can run. Return a PATH that begins with its folder.

    Its folder and modification time are the same in each test run, so that its objects are found in the cache.
    """
    name = hashlib.sha256(f"{Path(__file__).parent} {text}".encode()).hexdigest()[:12]
    program = Path(tempfile.gettempdir(), f"gpt149-test-ispc-{name}", "bin", "ispc")
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as file:
        file.write(text)
    os.utime(file.name, (0, 0))
    os.chmod(file.name, 0o755)
    os.replace(file.name, program)
    for path in (program.parent.parent, program.parent):
        path.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"
