"""The readers of a submission's products: source, compiler messages, object, symbols, replies, results."""

import json
import os
import struct
import tempfile
from functools import cache
from pathlib import Path

from conftest import ROOT
from honest.styles import published

from fuzz.mutating import Reader, repeats
from grader.backends.native import sanitize
from grader.core.arrays import np
from grader.core.harmless import harmless
from grader.core.results import Diagnosis, Flag, PartResult, Score, SubmissionResult
from grader.integrity import elf, inspection, symbols
from grader.integrity.elf import UndefinedSymbol
from grader.report import result_json
from grader.runner import calls
from grader.runner.calls import Request
from grader.runner.frames import FRAME, Incoming, RunnerDied
from grader.sandbox import Finished, run_limited
from grader.source import cpptext, diagnostics, hints

SOURCE = published().encode()
MASTER = ROOT / "module.cpp"
LITERALS = (
    b'#line 7 "x.cpp"\n/* a */ auto s = R"x(py::object)x"; char c = \'"\'; int n = 1\'000; // torch::zeros\n'
)
COMPILER = b"""\
In file included from module.cpp:3:
/usr/include/c++/12/vector:64:10: error: no matching function for call to 'std::vector<int, std::allocator<int> >::x'
module.cpp:14:5: error: 'twoDimRaed' was not declared in this scope; did you mean 'twoDimRead'?
   14 |     twoDimRaed(a, b);
      |     ^~~~~~~~~~
module.cpp:20:1: error: expected '}' at end of input [with T = std::map<int, std::pair<int, float> >; U = int]
/tmp/module.s:9: Error: no such instruction: `movk'
ld: module.cpp:(.text+0x9): undefined reference to `helper(float*, int)'
cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes
"""
SANITIZER = b"""\
/usr/include/c++/12/bits/stl_vector.h:1123: T& vector<T>::operator[](size_type): Assertion '__n < this->size()' failed.
module.cpp:9:3: runtime error: index 8 out of bounds for type 'float [8]'
==1==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x1
READ of size 4 at 0x602000000014 thread T0
    #0 0x7f00 in kernel(at::Tensor, int) /tmp/module.cpp:12:9
    #1 0x7f01 in main main.cpp:3
0x602000000014 is located 0 bytes to the right of 4-byte region [0x602000000010,0x602000000014)
"""
MANGLED = (
    b"_ZN2at4_ops13fill__Scalar4callERNS_6TensorERKN3c106ScalarE _ZNK2at10TensorBase8data_ptrIfEEPT_v"
    b" cblas_sgemm dlsym _ZN3fooIN1a1bEJLi3EfEE3barEv _ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev"
).split()
GREETING = {"status": "loaded", "functions": [["attention", "T(TTTii)"], ["four_d_read", "f(Viiiiiii)"]]}
PROFILE = {"profile": [["aten::zeros", 1.5, 2, 3, 64, 64]], "profiled_wall_s": 0.25}
REPLY = {"status": "ok", "kind": 2, "dtype": 6, "shape": [2, 3], "number": 0, **PROFILE}
THROWN: dict[str, object] = {"status": "exception", "message": "out_of_range"}


def framed(header: object, payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return FRAME.pack(len(text), len(payload)) + text + payload


def deep(header: dict[str, object]) -> dict[str, object]:
    """Return headers with a list in each place, nested as deep as a reader of JSON allows."""
    nested = json.loads("[" * 800 + "0" + "]" * 800)
    return {**dict.fromkeys(header, nested), "status": header["status"]}


HEADERS = (GREETING, THROWN, deep(THROWN), deep(REPLY))


def read_words(data: bytes) -> None:
    """Read a compiler's output and make the message for a student."""
    diagnostics.missing_symbols(data.decode(errors="replace"))
    finished = Finished(1, data, 1.0, 1.0, False)
    explained = diagnostics.explain(finished, {"module.cpp": SOURCE.decode()}, timeout_s=1.0)
    assert explained and len(explained) <= 15 * (diagnostics.MAX_MESSAGE + 1)


def read_hint(data: bytes) -> None:
    """Ask for hints on a source in which the first name is undeclared."""
    text = data.decode(errors="replace")
    name = next((word for word in text.split() if word.isidentifier()), "x")
    hints.hint_for(f"'{name}' was not declared in this scope", 1, text)
    hints.hint_for("too few arguments to function 'void twoDimRead(int)'", 1, text)


def read_object(data: bytes) -> None:
    assert all(len(flag.message) < 1000 for flag in inspection.flags_of(elf.parse(data)))


def read_symbol(data: bytes) -> None:
    name = data.decode(errors="replace")
    symbols.qualified_name(name)
    symbols.is_plain_operator(name)
    symbols.category(UndefinedSymbol(name, versioned=False), versions=True)


REQUEST = Request("attention", [], [np.ones(2, np.float32)], (2, 3))


def read_reply(data: bytes) -> None:
    """Read a frame from a pipe, as a greeting and as the reply to a call."""
    incoming = Incoming(1 << 20)
    with open(os.memfd_create("reply"), "w+b", buffering=0) as pipe:
        pipe.write(data)
        pipe.seek(0)
        while not incoming.complete:
            incoming.read_some(pipe.fileno())
    if incoming.header.get("status") == "loaded":
        calls.offered(incoming.header)
        return
    call = calls.understood(incoming.header, incoming.payload, REQUEST, 1.0, 1.0)
    assert len(call.message) <= calls.LONGEST_WORDS and len(call.dtype) < 30


def read_result(data: bytes) -> None:
    """Put a submission's texts into a result. Its file stays within its size limit, and reads back."""
    text = data.decode(errors="replace")
    part = PartResult("p", "t", "crash", 1.0, diagnosis=Diagnosis("x", text), output=text)
    result = SubmissionResult("a", "b", "c", {}, {}, {}, (part,) * 8, flags=(Flag("code", text, "review"),))
    values = result_json.to_dict(result, Score((), 0.0, 0, 0.0, 0.0, 0.0))
    assert len(json.dumps(values, indent=2)) < result_json.LARGEST_BYTES
    result_json.from_dict(values)


@cache
def objects() -> tuple[bytes, ...]:
    """Small shared objects: one that calls the loader and names what it loads, one that wants torch's operators."""
    texts = (
        'extern void *dlsym(void *, const char *); void *run(void) { return dlsym(0, "cblas_sgemm"); }',
        'extern int w(void) __asm__("_ZN2at4_ops6matmul4callERKNS_6TensorES4_"); int run(void) { return w(); }',
    )
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for text in texts:
            (Path(folder) / "a.c").write_text(text)
            command = ["cc", "-shared", "-fPIC", "-Os", "-w", "-Wl,-z,noseparate-code", "-o", "a.so", "a.c"]
            done = run_limited(command, cwd=Path(folder), timeout_s=60)
            assert done.returncode == 0, done.output
            made.append((Path(folder) / "a.so").read_bytes())
    return tuple(made)


def many_sections(size: int) -> bytes:
    """An object with as many empty sections as fit, their number where ELF keeps it when there are many."""
    image = bytearray(objects()[0])
    (table,) = struct.unpack_from("<Q", image, 40)
    count = struct.unpack_from("<H", image, 60)[0]
    headers = image[table : table + 64 * count]
    more = max(0, size - len(image) - len(headers)) // 64
    struct.pack_into("<Q", headers, 32, count + more)
    struct.pack_into("<Q", image, 40, len(image))
    struct.pack_into("<H", image, 60, 0)
    empty = struct.pack("<IIQQQQIIQQ", 0, 1, 2, 0, 0, 0, 0, 0, 1, 0)
    return bytes(image + headers + empty * more)


def readers() -> list[Reader]:
    return [
        Reader(
            "source", lambda data: cpptext.renames_lines(data.decode(errors="replace")), (SOURCE[:6000], LITERALS),
            words=(b"/*", b"*/", b'R"(', b'R"x(', b')x"', b'"', b"'", b"\\\n", b"#include <torch/", b"py::"),
            patterns={
                **repeats(b"/*a", head=b'auto s = R"(\n', tail=b')";'),
                **repeats(b"/*a", b'R"ab(', b"'\n", b"\n", b"#include <torch/\n", b"Py"),
                **repeats(b'\\"', head=b'"', tail=b"\n"),
                **repeats(b" ", head=b"torch"),
            },
        ),
        Reader(
            "compiler's words", read_words, (COMPILER, COMPILER[:300], b"module.cpp:1:1: error: x\n"),
            words=(b"module.cpp:", b": error: ", b"undefined reference to `", b"'", b"<", b" [with ", b".s:"),
            patterns={
                "nested templates": lambda n: b"module.cpp:1:1: error: " + b"<" * (n // 2) + b">" * (n // 2),
                **repeats(b"a.s:", b"undefined reference to `", b"a:1:", b"module.cpp:1:1: error: x\n"),
                **repeats(b" [with ", head=b"module.cpp:1:1: error: "),
                **repeats(b"9", head=b"module.cpp:", tail=b":1: error: x"),
                **repeats(b"\n", head=b"module.cpp:1:"),
            },
        ),
        Reader(
            "hints", read_hint, (SOURCE[:6000], b"twoDimRaed(a, b); twoDimRead(c)\n"),
            patterns={
                "undeclared words": lambda n: b"".join(b"a%xz = b%xz + a%xz;\n" % (k, k, k) for k in range(n // 20)),
                "words alike": lambda n: b"".join(2 * (b"ab" * 20 + b"%d " % k) for k in range(n // 92)),
                **repeats(b"a"),
                **repeats(b"(,", head=b"twoDimRead("),
            },
        ),
        Reader(
            "sanitizers' reports",
            lambda data: sanitize.report(harmless(data.decode(errors="replace")), MASTER),
            (SANITIZER, SANITIZER[250:]),
            words=(b"    #1 0x1 in ", b"module.cpp:1", b": Assertion '", b"' failed.", b"runtime error: "),
            patterns={
                **repeats(b"\n", head=b"module.cpp:9:3: runtime error: x\n"),
                **repeats(b"/a:1: ", tail=b"\nERROR: AddressSanitizer: ABRT"),
                **repeats(b"a :1", head=b"module.cpp:9:3: runtime error: x\n    #1 0x1 in "),
            },
        ),
        Reader(
            "object", read_object, objects(), allowed=(elf.NotReadable,),
            words=(b"cblas_", b"_ZN", b"\x0b\x00\x00\x00", b"\xff\xff\xff\x6f", b"\x7fELF\x02\x01"),
            patterns={
                "many sections": many_sections,
                "a long name": lambda n: objects()[0].replace(b"cblas_sgemm\0", b"cblas_sgemm") + b"cblas_" + b"a" * n,
            },
        ),
        Reader(
            "symbol", read_symbol, MANGLED,
            words=(b"_ZN", b"I", b"E", b"J", b"L", b"S_", b"2at4_ops", b"99999"),
            patterns={
                **repeats(b"x", b"9", head=b"_ZN1aI"),
                **repeats(b"9", b"1a", b"1aIE", head=b"_ZN"),
                **repeats(b"I", head=b"_ZN1a"),
                **repeats(b"_", head=b"aten::"),
                **repeats(b"s", tail=b"gemm!"),
            },
        ),
        Reader(
            "reply", read_reply, (framed(REPLY, bytes(32)), *map(framed, HEADERS)), allowed=(RunnerDied,),
            words=(b'"kind": ', b'"dtype": "', b"null", b"[[", b"1e999", b"NaN", b'"shape": [', b"true", b"-1"),
            patterns={
                "nested": lambda n: FRAME.pack(n, 0) + b"[" * n,
                "functions": lambda n: framed({"status": "loaded", "functions": [["f" * n, "T"]]}),
                "a message": lambda n: framed({"status": "exception", "message": "\x1b" * n}),
            },
        ),
        Reader(
            "result.json", read_result, (b"aten::matmul\n", b"[1] \x1b[2J", SANITIZER),
            patterns=repeats("é".encode(), b"\x00"),
        ),
    ]  # fmt: skip
