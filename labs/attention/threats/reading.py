"""Rows E1, E2, E4, E5 and F1: what makes the judge read long, or misread, and the compilers read what they must not. No
sandbox alone answers it: the judge's readers do."""

from __future__ import annotations

from .sources import End, Threat

HONEST = "attention(q, k, v, o, B * H, N, d);"
#: Sections from here on are counted elsewhere than in the header of an object.
SECTIONS = 65_400
NO_ASSEMBLER = "g++: fatal error: cannot execute 'as': execvp: Permission denied"

READING = [
    Threat(
        "E1",
        "torch's matmul behind 65,400 sections",
        End(("compile_error",), says="torch's own work"),
        "O = QT.matmul(KT.transpose(2, 3)).softmax(-1).matmul(VT);",
        alone=True,
        top=f"""
        asm(".altmacro\\n.macro named n\\n.section .s\\\\n,\\"a\\"\\n.byte 1\\n.endm\\n.set k,0\\n"
            ".rept {SECTIONS}\\nnamed %k\\n.set k,k+1\\n.endr\\n.text\\n");
        """,
    ),
    Threat("E2", "Python by a name that nobody lists", End(("compile_error",), says="PyEval_GetBuiltins"),
           HONEST + ' if (PyEval_GetBuiltins() == nullptr) std::puts("none");', alone=True,
           top='extern "C" void *PyEval_GetBuiltins();\n'),
    Threat(
        "E2",
        "Python by pybind11, which brings the runner that has it",
        # Nothing can be said of it there but that a person has to look.
        End(("pass",), ("torch_runner",)),
        HONEST + ' py::gil_scoped_acquire own; py::module_::import("torch");',
        alone=True,
        # Also what tests/test_build.py asks of such a file: it is compiled once for both.
        top="namespace py = pybind11;\nint length(py::list items) { return items.size(); }\n"
        "int next(int a) { return a + 1; }\n",
        binds='    m.def("length", &length);\n    m.def("next", &next);\n',
        build_s=300.0,  # all of torch's headers
    ),
    Threat("E4", "the name of a library's function, 20 MB long", End(("compile_error",), says="it may have 8 MiB"),
           HONEST, alone=True,
           top='asm(".section .rodata\\n.ascii \\"cblas_\\"\\n.fill 20971520,1,97\\n.byte 0\\n.text\\n");\n'),
    Threat("E4", "the name of a library's function, 6 MB long, beside the loader",
           End(("rejected",), ("loads_a_library",)),
           HONEST + ' if (dlsym(nullptr, "mallinfo2") == nullptr) std::puts("none");', alone=True,
           top='asm(".section .rodata\\n.ascii \\"cblas_\\"\\n.fill 6000000,1,97\\n.byte 0\\n.text\\n");\n'),
    Threat("E5", "a symbol with a length of 5,000 digits", End(("pass",)), HONEST, alone=True,
           top=f'asm(".weak _ZN{"7" * 5000}\\n.data\\n.quad _ZN{"7" * 5000}\\n.text\\n");\n'),
    Threat("E5", "a symbol with a template argument of 500 KB", End(("pass",)), HONEST, alone=True,
           top=f'asm(".weak _ZN1aI{"x" * 500_000}\\n.data\\n.quad _ZN1aI{"x" * 500_000}\\n.text\\n");\n'),
    Threat("E5", "330,000 comments opened in a raw string", End(("pass",)), HONEST, alone=True,
           top=f'[[maybe_unused]] static const char *text = R"-(\n{"/*a" * 330_000})-";\n'),
    Threat("E5", "6,000 undeclared words", End(("compile_error",)),
           source="void f() {\n" + "".join(f"  word{k}x = word{k}y + word{k}x;\n" for k in range(6_000)) + "}\n"),
    Threat("E5", "a place that the file itself has named",
           End(("compile_error",), silent=("alice",), says="a #line directive hides where"),
           source='#line 7 "alice/module.cpp"\n#error this is not my file\n'),
    Threat("E5", "an error in the words of the compiler that has no memory",
           End(("compile_error",), silent=("4 GB",), says="out of memory"), source="#error out of memory\n"),
    *(
        # A machine at fault would be a class without grades.
        Threat(
            "E5",
            f"an error in the words of a compiler that does not start, by {how}",
            End(("compile_error",)),
            source=text,
        )
        for how, text in (
            ("the assembler", f'asm(".print \\"{NO_ASSEMBLER}\\"\\n.err");\n'),
            ("a line of its own", f'static_assert(false, "a\\n{NO_ASSEMBLER}\\n");\n'),
        )
    ),
]  # fmt: skip

_INCLUDED = [
    Threat("F1", name, End(("compile_error",)), HONEST, alone=True, top=f'asm(R"({text})");\n')
    for name, text in (
        ("a library's machine code", '.pushsection .text\n.incbin "{reference}", 0, 64\n.popsection'),
        (
            "a library's machine code, by a directive that a macro spells",
            '.macro put a b\n.\\a\\b "{reference}", 0, 64\n.endm\n.pushsection .text\nput inc bin\n.popsection',
        ),
        ("the assembler's machine code", '.pushsection .text\n.incbin "/proc/self/exe", 0, 64\n.popsection'),
        ("a library as the assembler's text", '.include "{reference}"'),
    )
]
_BYTECODE = Threat(
    "F1",
    "bytecode that a compiler at the link would assemble",
    End(("pass",)),
    HONEST,
    alone=True,
    top='asm(R"(.section .gnu.lto_.opts,"e",@progbits\n.byte 0\n.text)");\n',
)
ASSEMBLED = [*_INCLUDED, _BYTECODE]
