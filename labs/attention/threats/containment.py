"""Threats that the sandbox stops (C1 to D2, E3), and files that the judge must read safely (E1, E2, E4, E5, F1).

`open_end` is a threat's required outcome (`End`) in tier D, the weakest sandbox, if this differs from the other tiers.
"""

from __future__ import annotations

from .sources import End, Threat, function

HONEST = "attention(q, k, v, o, B * H, N, d);"
IN_PARALLEL = """
        #pragma omp parallel for
        for (int p = 0; p < B * H; p++)
            attention_of(q + p * N * d, k + p * N * d, v + p * N * d, o + p * N * d, N, d);
"""
CRASH = End(("crash",))
ANYHOW = ("pass", "wrong", "crash", "timeout")

FORGE = r"""
    std::string said = "%s";
    uint32_t length = said.size();
    uint64_t bytes = %s;
    std::vector<char> payload(bytes, 0);
    for (int fd = 3; fd < 1100; fd++)
        if (fcntl(fd, F_GETFD) >= 0 && write(fd, &length, 4) + write(fd, &bytes, 8) > 0)
            if (write(fd, said.data(), length) + write(fd, payload.data(), bytes) < 0) continue;
"""
FORGED_REPLY = (
    r"{\"status\": \"ok\", \"kind\": 2, \"dtype\": 6, \"number\": 0, \"shape\": ["
    '" + std::to_string(B) + ", " + std::to_string(H) + ", " + std::to_string(N) + ", " + std::to_string(d) + "]}'
)

PRETENCE = [
    Threat(
        "C1",
        "machine code that the kernel writes and makes executable",
        CRASH,
        """
        static const unsigned char code[] = {0xc3};
        void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        std::memcpy(page, code, sizeof code);
        mprotect(page, 4096, PROT_READ | PROT_EXEC);
        reinterpret_cast<void (*)()>(page)();
        """
        + HONEST,
    ),
    Threat(
        "C1",
        "a forged result, printed and written",
        End(("wrong",)),
        r"""
        std::puts("{\"parts\": [{\"id\": \"part1\", \"verdict\": \"pass\", \"points\": 10}]}");
        for (const char *name : {"result.json", "results.json", "grades.csv"})
            if (FILE *file = std::fopen(name, "w")) { std::fputs("{\"points\": 100}", file); std::fclose(file); }
        """,
    ),
    Threat("C1", "a forged reply without sense", CRASH,
           FORGE % (r"{\"kind\": 2, \"dtype\": 6, \"shape\": [-1]}", "0")),
    Threat("C1", "a forged reply of zeros", End(("wrong", "crash", "timeout")),
           FORGE % (FORGED_REPLY, "4ull * B * H * N * d")),
    Threat("C1", "a forged reply that is gigabytes long",
           End(("crash",), says="sent back something other than a result"),
           FORGE.replace("payload(bytes", "payload(4") % (FORGED_REPLY, "4ull << 30")),
    Threat("C1", "a forged profile of huge numbers", End(("crash",), says="sent back something other than a result"),
           FORGE % (FORGED_REPLY[:-1] + r", \"profile\": [[\"x\", 1, 1, 1, 1e300, 1]]}", "4ull * B * H * N * d")),
    Threat("C1", "every descriptor closed", CRASH, "for (int fd = 3; fd < 64; fd++) close(fd);" + HONEST),
    Threat("C1", "exit(0) in the kernel", CRASH, HONEST + " std::exit(0);"),
    Threat("C1", "exit(0) in an initialiser", CRASH, HONEST, alone=True,
           top='static int leave = (std::puts("all passed"), std::exit(0), 1);\n'),
    Threat(
        "C6",
        "terminal codes, HTML and formulas in the printed text",
        End(("pass",), silent=("\x1b", "\\u001b", "\\u0007")),
        HONEST
        + r"""
        static int once = 0;
        if (once++ == 0) {
            std::printf("\x1b[2J\x1b]0;title\a<script>alert(1)</script>\n=HYPERLINK(\"http://x\")\n\xff\xfe%s\n", "%n");
            std::printf("%s", std::string(1 << 20, 'x').c_str());
        }
        """,
    ),
]  # fmt: skip

SECRETS = [
    Threat(
        "C2",
        "the judge's files and memory",
        End(ANYHOW, any_flag=True, silent=("SEEN", "OPENED")),
        HONEST
        + r"""
        auto show = [](const std::string &path) {
            char text[64] = {0};
            int fd = open(path.c_str(), O_RDONLY);
            if (fd >= 0 && read(fd, text, 63) > 0) std::printf("%s\n", text);
            if (fd >= 0) close(fd);
            return fd >= 0;
        };
        show("{secret}");
        for (int up = getppid(), k = 0; up > 0 && k < 3; k++) {
            for (const char *what : {"environ", "mem", "fd/3"})
                if (show("/proc/" + std::to_string(up) + "/" + what)) std::printf("OPENED %s\n", what);
            up = up > 1 ? 1 : 0;
        }
        """,
        open_end=End(ANYHOW, any_flag=True),
    ),
    Threat("C3", "a secret included", End(("compile_error", "missing"), silent=("SEEN-",)),
           source='#if __has_include("{secret}")\n#error SEEN-by-the-preprocessor\n#endif\n#include "{secret}"\n',
           open_end=End(("compile_error", "missing"))),
    Threat("C3", "a secret assembled in", End(("compile_error",), silent=("SEEN-",)), HONEST + " std::puts(stolen);",
           alone=True,
           top='asm(".data\\nstolen: .incbin \\"{secret}\\"\\n.byte 0\\n.text");\nextern "C" const char stolen[];\n'),
    Threat("C3", "a compile error that imitates a message of the sandbox", End(("compile_error",)),
           source='#line 1 "sandbox: "\n#error does not start\n'),
    Threat(
        "C3",
        "endless templates, and pages of errors",
        End(("compile_error",)),
        source="template <int N> struct More { static constexpr int value = More<N + 1>::value + More<N + 2>::value; };"
        + "\nint x = More<0>::value;\n"
        + "".join(f"int y{k} = undeclared_{k};\n" for k in range(2000)),
    ),
    Threat(
        "C4",
        "files that shadow the harness",
        End(("pass",), silent=("SHADOWED",)),
        HONEST,
        files=dict.fromkeys(
            ("torch.py", "json.py", "conftest.py", "sitecustomize.py", "grader/__init__.py"),
            "raise SystemExit('SHADOWED')\n",
        )
        | {"ATen/ATen.h": "#error SHADOWED\n", "omp.h": "#error SHADOWED\n", "pyproject.toml": "SHADOWED\n"},
    ),
]  # fmt: skip

EXHAUSTION = [
    Threat("D1", "a fork bomb", End(("crash",), ("starts_processes",)),
           HONEST + " for (int k = 0; k < 9; k++) if (fork() == 0) { setsid(); for (;;) pause(); }", calls="process",
           open_end=End(ANYHOW, ("starts_processes",))),
    Threat(
        "D1",
        "an orphan in a session of its own",
        End(("crash",), ("starts_processes",)),
        HONEST
        + " if (fork() == 0) { setsid(); signal(SIGTERM, SIG_IGN); if (fork() == 0) sleep(600); _exit(0); }",
        calls="process",
        open_end=End(ANYHOW, ("starts_processes",)),
    ),
    Threat("D1", "signals to everybody else", End((*ANYHOW, "rejected"), ("reaches_outside",)),
           HONEST + " kill(getppid(), SIGTERM);", calls="outside", open_end=None),
    Threat("D1", "a program that names a missing loader, so it cannot start",
           End(("compile_error",), flags=("machine_code",), says="does not start"), HONEST, alone=True,
           top='asm(".pushsection .interp,\\"a\\",@progbits\\n.string \\"/nonexistent/ld.so\\"\\n.popsection");\n'),
    Threat(
        "D1",
        "a runner's greeting that the kernel forges",
        End(("compile_error", "crash"), silent=("reference failed",)),
        HONEST,
        alone=True,
        top="""
        __attribute__((constructor)) static void greet() {
            const char text[] = "{\\"status\\":\\"load_error\\",\\"message\\":\\"kit error: reference failed\\"}";
            struct __attribute__((packed)) { uint32_t header; uint64_t payload; } frame{sizeof text - 1, 0};
            for (int fd = 3; fd < 16; fd++)
                if (write(fd, &frame, sizeof frame) > 0) (void) !write(fd, text, sizeof text - 1);
        }
        """,
    ),
    Threat("D1", "memory without end", End(("crash", "timeout")),
           "std::vector<std::vector<char>> all; for (;;) all.emplace_back(64 << 20, 1);"),
    Threat(
        "D1",
        "a disk filled",
        End(("crash", "wrong")),
        """
        std::vector<char> block(1 << 20, 1);
        int fd = open("fill.bin", O_CREAT | O_WRONLY, 0600);
        for (int k = 0; k < 4096; k++) if (write(fd, block.data(), block.size()) <= 0) break;
        """,
    ),
    Threat("D1", "an endless loop that ignores SIGTERM", End(("timeout",)),
           "for (int s = 1; s < 32; s++) signal(s, SIG_IGN); for (volatile bool on = true; on;) {}"),
    Threat(
        "D1",
        "two threads that sleep in each repeated call",
        # The judge repeats the calls of a kernel with threads, but stops after a short time. 40 calls of this kernel
        # would take 80 s.
        End(("pass",)),
        IN_PARALLEL + "static int calls = 0; if (calls++ > 8) usleep(2000000);",
        part="part3",
        alone=True,
        wall_s=45.0,
    ),
    Threat("D1", "a sleep in each call", End(("slow", "timeout")), HONEST + " usleep(1000000);", timed=True, alone=True,
           wall_s=30.0),
    Threat(
        "D1",
        "the network",
        End(ANYHOW, ("network",), silent=("ONLINE",)),
        HONEST
        + """
        for (int kind : {SOCK_STREAM, SOCK_DGRAM})
            if (socket(AF_INET, kind, 0) >= 0) std::puts("ONLINE");
        """,
        calls="outside",
        open_end=End(ANYHOW, ("network",)),
    ),
    Threat(
        "D2",
        "files left for the next submission",
        End(ANYHOW, any_flag=True),
        HONEST
        + """
        for (const char *folder : {"/dev/shm/", "/tmp/", "/var/tmp/", "./"}) {
            int fd = open((std::string(folder) + "{marker}").c_str(), O_CREAT | O_RDWR, 0666);
            if (fd >= 0 && write(fd, "left", 4) > 0) close(fd);
        }
        mkdir("{marker}-dir", 0000);
        chmod(".", 0777);
        """,
    ),
]  # fmt: skip

#: Makes nested folders: deeper than Python's recursion limit, or with a path longer than the system allows.
NESTING = """
        const std::string name({length}, 'd');
        for (int k = 0; k < {depth}; k++) if (mkdir(name.c_str(), 0700) != 0 || chdir(name.c_str()) != 0) break;
        """
NESTED = [
    Threat("E3", "3000 nested folders", End(("crash",)), HONEST + NESTING.format(length=1, depth=3000)),
    Threat("E3", "30 nested folders with a path too long to be read", End(("crash",)),
           HONEST + NESTING.format(length=200, depth=30)),
]  # fmt: skip

CONTAINMENT = [*PRETENCE, *SECRETS, *EXHAUSTION, *NESTED]


# ---- threats C1 against part 4Dread, whose runner replies with a table: forged tables. The controls are a right and a
# wrong accessor.

_FILE = """
#include <torch/extension.h>
#include <fcntl.h>
#include <unistd.h>
#include <string>
#include <vector>

float {name}(std::vector<float> &tensor, int &x, int &y, int &z, int &b, const int &sizeX, const int &sizeY,
             const int &sizeZ) {{
    {body}
}}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("{name}", &{name}); }}
"""
_RIGHT = "return tensor[((x * sizeX + y) * sizeY + z) * sizeZ + b];"
_NO_RESULT = End(("crash",), says="sent back something other than a result")


def _row(row: str, name: str, end: End, body: str) -> Threat:
    return Threat(row, name, end, source=_FILE.format(name=function("row0"), body=body), part="4Dread")


def _forged(name: str, end: End, table: str, payload_bytes: str) -> Threat:
    header = rf"{{\"status\": \"ok\", \"kind\": 1, {table}}}"
    return _row("C1", f"a forged table {name}", end, FORGE % (header, payload_bytes) + _RIGHT)


ACCESSORS = [
    _forged("of a type without numbers", _NO_RESULT, r"\"dtype\": 15, \"shape\": [3]", "1 << 16"),
    _forged("of another type", _NO_RESULT, r"\"dtype\": 6, \"shape\": [3]", "1 << 16"),
    _forged("of another length", _NO_RESULT, r"\"dtype\": 7, \"shape\": [1]", "1 << 16"),
    _forged("of another shape", _NO_RESULT, r"\"dtype\": 7, \"shape\": [1, 1, 1]", "1 << 16"),
    _forged("without its numbers", CRASH, r"\"dtype\": 7, \"shape\": [100]", "8"),
]
ACCESSOR_CONTROLS = [
    _row("", "a right accessor", End(("pass",)), _RIGHT),
    _row("", "a wrong accessor", End(("wrong",)), _RIGHT.replace("+ b]", "]")),
]


# ---- threats E1, E2, E4, E5 and F1: files that would take the judge very long to read, that it would misread, or that
# make the compiler read forbidden files. The judge's own readers must handle them, because the sandbox does not.

#: With more sections, an object file stores their number outside of its header, where a simple reader does not look.
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
    Threat("E2", "Python by a function that is on no list", End(("compile_error",), says="PyEval_GetBuiltins"),
           HONEST + ' if (PyEval_GetBuiltins() == nullptr) std::puts("none");', alone=True,
           top='extern "C" void *PyEval_GetBuiltins();\n'),
    Threat(
        "E2",
        "Python by pybind11, which needs a runner with Python",
        # A file that needs Python need not be a cheat, so the part passes, and the flag asks a person to look.
        End(("pass",), ("torch_runner",)),
        HONEST + ' py::gil_scoped_acquire own; py::module_::import("torch");',
        alone=True,
        lacking_end=End(("unjudged",), ("torch_runner",), says="apt install python3-dev"),
        # The path in the comment makes a file for each folder of secrets, so that each is built.
        top="// {secret}\nnamespace py = pybind11;\nint length(py::list items) { return items.size(); }\n"
        "int next(int a) { return a + 1; }\n",
        binds='    m.def("length", &length);\n    m.def("next", &next);\n',
        build_s=300.0,  # a long limit, because all of torch's headers are compiled
    ),
    Threat("E4", "the name of a library's function, 20 MB long", End(("compile_error",), says="the limit is 8 MiB"),
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
    Threat("E5", "a #line directive that names another file and line",
           End(("compile_error",), silent=("alice",), says="a #line directive hides the line"),
           source='#line 7 "alice/module.cpp"\n#error this is not my file\n'),
    Threat("E5", "a compile error that imitates a compiler without memory",
           End(("compile_error",), silent=("4 GB",), says="out of memory"), source="#error out of memory\n"),
    *(
        # If the judge took this compile error for a fault of the machine, one file could stop the grading of a class.
        Threat(
            "E5",
            f"a compile error that imitates a compiler that does not start, by {how}",
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
            "a library's machine code, by a directive that a macro assembles",
            '.macro put a b\n.\\a\\b "{reference}", 0, 64\n.endm\n.pushsection .text\nput inc bin\n.popsection',
        ),
        ("the assembler's machine code", '.pushsection .text\n.incbin "/proc/self/exe", 0, 64\n.popsection'),
        ("a library as the assembler's text", '.include "{reference}"'),
    )
]
_BYTECODE = Threat(
    "F1",
    "bytecode that the linker's plug-in would compile",
    End(("pass",)),
    HONEST,
    alone=True,
    top='asm(R"(.section .gnu.lto_.opts,"e",@progbits\n.byte 0\n.text)");\n',
)
ASSEMBLED = [*_INCLUDED, _BYTECODE]
