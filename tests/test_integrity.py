"""Each kind of evidence for the flags of `grader.integrity`: symbols, texts, loaded code, times."""

import platform
import shutil
import struct
import subprocess
import timeit
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from building import built, one_function
from conftest import refused, write
from torch.autograd.profiler import profile

from grader.backends.native import nativebuild
from grader.core.arrays import Array, np
from grader.core.results import ProfileRow, Timing
from grader.integrity import elf, inspection, symbols
from grader.integrity import flags as integrity
from grader.runner.watch import Evidence

row = partial(ProfileRow, self_cpu_us=1.0, cpu_total_us=1.0, calls=1, cpu_bytes=0, self_cpu_bytes=0)
#: Undefined symbols of objects, by the category that the kit must give them (None: harmless). VERSIONED has symbols of
#: the C library, which have a version.
UNVERSIONED = {
    "torch": """
        _ZN2at4_ops6matmul4callERKNS_6TensorES4_ _ZN2at4_ops4exp_4callERNS_6TensorE _ZN2at6native17cpublas4gemmE
        _ZN2at4_ops11softmax_int4callERKNS_6TensorElSt8optionalIN3c1010ScalarTypeEE _ZN5torch2nn10ModuleBaseE
        _ZN2at38compositeexplicitautogradnonfunctional3bmmERKNS_6TensorES3_ cblas_sgemm sgemm_ SGEMM Sleef_expf16_u10
        _ZNK3c1010Dispatcher18findSchemaOrThrowEPKcS2_ some_function_of_torch_alone""",
    "hiding": "_ZN2at20enableRecordFunctionEb",
    "python": "PyRun_SimpleString PyObject_CallFunction _PyObject_Vectorcall",
    None: """
        _ZN2at4_ops5zeros4callEN3c108ArrayRefINS2_6SymIntEEESt8optionalINS2_10ScalarTypeEES6_INS2_6LayoutEES6_INS2_6DeviceEES6_IbE
        _ZN2at4_ops13fill__Scalar4callERNS_6TensorERKN3c106ScalarE _ZN2at4_ops19empty_memory_format4callE
        _ZN2at4_ops12slice_Tensor4callE _ZN2at4_ops13transpose_int4callE _ZN2at4_ops5equal4callERKNS_6TensorES4_
        _ZNK2at10TensorBase8data_ptrIfEEPT_v _ZN2at11TensorMaker11make_tensorEv _ZN2at15get_num_threadsEv
        _ZNK2at6Tensor5indexESt16initializer_listINS_8indexing11TensorIndexEE _ZTIN3c105ErrorE _ZNSolsEi _Znwm
        _ZN3c106detail14torchCheckFailEPKcS2_jS2_ _ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev
        __gmon_start__ _ITM_registerTMCloneTable PyObject_Free PyEval_GetBuiltins ISPCLaunch memcpy""",
}
VERSIONED = {"loader": "dlsym dladdr1", "process": "fork", "network": "socket", None: "expf"}
PLAIN_KERNEL = '#include <stdio.h>\nextern int other(void); int run(void) { puts("x"); return other(); }'
LOADER, UNREADABLE = ("calls_the_loader", "review"), ("unreadable_object", "review")
WORKS, SLOW_TO_STOP = ("works_while_stopped", "rejected"), ("works_while_stopped", "review")


@pytest.mark.parametrize("versioned", [False, True])
def test_symbols_that_can_replace_a_students_work_have_a_category(versioned: bool) -> None:
    table = VERSIONED if versioned else UNVERSIONED
    expected = {name: category for category, names in table.items() for name in names.split()}
    wanted = {name: elf.UndefinedSymbol(name, versioned=versioned) for name in expected}
    assert {name: symbols.category(wanted[name], versions=True) for name in wanted} == expected


def test_names_are_read_as_the_compiler_wrote_them() -> None:
    """If the demangler c++filt is installed, it must give the same names for symbols of torch's own library."""
    assert symbols.qualified_name("_ZNK2at10TensorBase8data_ptrIfEEPT_v") == "at::TensorBase::data_ptr"
    assert symbols.qualified_name("_ZN3fooIN1a1bEJLi3EfEE3barEv") == "foo::bar"
    assert symbols.qualified_name("_Znwm") == symbols.qualified_name("_ZN" + "7" * 5000) == ""
    assert symbols.qualified_name("_ZN1a" + "9" * 400 + "b") == "a", "a name with an absurd length is cut"
    assert symbols.qualified_name("_ZN1aI" + "9" * 5000 + "E1bE") == "a"
    assert symbols.qualified_name("_ZN1aI" + "x" * 100_000 + "E1bEv") == "a::b"
    demangler = shutil.which("c++filt")
    if demangler is None:
        return
    library = Path(torch.__file__).parent / "lib" / "libtorch_python.so"
    wanted = [symbol.name for symbol in elf.read(library).wanted if symbol.name.startswith("_ZN2at")]
    assert len(wanted) > 1000
    ours = " ".join(UNVERSIONED.values()).split()
    names = [*wanted[::20], *(name for name in ours if name.startswith(("_ZN2at4_ops", "_ZNK2at")))]
    read = subprocess.run([demangler], input="\n".join(names), capture_output=True, text=True).stdout
    for name, readable in zip(names, read.split("\n"), strict=False):
        if not readable.startswith("_Z"):
            assert symbols.qualified_name(name) in readable.replace("<float>", ""), name


def compiled(folder: Path, text: str, *flags: str, made: str = "kernel.s", by: str = "cc") -> Path:
    source = write(folder, text, "kernel.cpp" if by == "c++" else "kernel.c")
    subprocess.run([by, *flags, "-w", "-o", str(folder / made), str(source)], check=True)
    return folder / made


def object_of(folder: Path, text: str) -> Path:
    """Compile a shared object without torch. Functions that it uses stay undefined."""
    return compiled(folder, text, "-shared", "-fPIC", "-O1", made="kernel.so")


def loading(name: str) -> str:
    return f'extern void *dlsym(void *, const char *); void *run(void) {{ return dlsym(0, "{name}"); }}'


def inspected(path: Path) -> list[tuple[str, str]]:
    """Return the codes and levels of an object's flags, sorted."""
    return sorted((flag.code, flag.level) for flag in integrity.inspect_object(built(path)))


def test_an_object_is_flagged_for_what_it_loads_and_calls(tmp_path: Path) -> None:
    """A call of the loader (dlopen) is proof of a cheat only together with a library's name."""
    named = '#include <stdio.h>\nvoid run(void) { puts("not as fast as cblas_sgemm of libmkl"); }'
    loads = {loading("cblas_sgemm"): [LOADER, ("loads_a_library", "rejected")]}
    loads[loading("mallinfo2")] = [LOADER]
    for call, level in {"sched_setaffinity": "note", "nice": "review", "sched_getaffinity": ""}.items():
        text = f"int {call}(void);\nint run(void) {{ return {call}(); }}"
        loads[text] = [("chooses_cores", level)] * bool(level)
    for k, (text, flags) in enumerate((loads | {named: []}).items()):
        folder = tmp_path / str(k)
        folder.mkdir()
        assert inspected(object_of(folder, text)) == flags, text


def test_a_system_call_is_left_to_the_sandboxes_filter(tmp_path: Path) -> None:
    """Honest objects can contain `syscall`: the C++ library calls it to wait for an atomic."""
    waits = "#include <atomic>\nvoid run(std::atomic<int>& which) { which.wait(0); }\n"
    made = compiled(tmp_path, waits, "-std=c++20", "-c", "-O3", "-fPIE", made="kernel.o", by="c++")
    assert inspected(made) == []


#: Inline assembly without data: instructions, labels, padding, comments, repetition and a choice of syntax.
ORDINARY_ASSEMBLY = r"""
vfmadd231ps (%rdi), %ymm1, %ymm0 # don't stop; .byte 1
1: .p2align 4; .align 16; .p2align 4,,10; .balign 8, 0x90
/* two lines; "of
   .byte 1 */ mov $'a', %eax; jne 1b
.rept 4
vaddps %ymm0, %ymm0, %ymm0
.endr
mov %fs:0x28, %rax; .intel_syntax noprefix; mov eax, dword ptr [rdi]; .att_syntax
"""
HIDDEN_BYTES = r"""
.quad 1|1: .BYTE 1|nop; .value 0x1234|.incbin "module.cpp"|.include "runner.o"|.reloc .,R_X86_64_PC32,f|.org 8|. = . + 8
.pushsection .data|.popsection|.previous|.end|.macro m a\n.by\a 1\n.endm|.irp x, .byte 1\n\x\n.endr|.insn|.nops 4
.balign 2, 0xcc|.p2align 3, 0xc3|mov $'", %eax; .byte 1 #"|/ /*\n.byte 1\n/ */|".byte" 1|éx: .byte 1|/**/ .byte 1
#NO_APP\n.byte 1\n#APP|.section .t,"a"\n.section .t,"ax"|.section .text.t,"a"\n.byte 1|.section .t\n.byte 1
.ident "a\n" ; .byte 1 #"|.ident "a\\n" ; .byte 1 #"|.section .t,"7"|.section .t,"awx"
.section .note.GNU-stack,"x"|.section .data,"ax"
.section .t,"ax"; .data; .section .t; .byte 1
"""
BYTES_BY_NAME = [
    'const __attribute__((section(".text"), used)) unsigned char code[] = {1, 2, 195};',
    'const __attribute__((section(".text.code"), used)) unsigned char code[] = {1, 2, 195};',
    r'__attribute__((section(".text,\"ax\",@progbits#"), used)) unsigned char code[] = {1, 2, 195};',
    r'extern int f(void) asm("f\n\t.byte 1, 2, 195\n\tcall f"); int run(void) { return f() + 1; }',
    'asm(".globl code; code: .byte 1, 2, 195");',
]
#: Data of every kind, in the sections that compilers choose for it.
PLAIN_DATA = r"""
#include <math.h>
const char *texts[] = {"';.byte 1", "\"#\n", "/*", "\001\377"};
static const double table[] = {1.5, 2.5};
__thread int each_thread[4];
__attribute__((section("quick"))) double other(int n) { return sin(table[n & 1]) + each_thread[n & 3]; }
__attribute__((cold)) const char *text(int n) { return texts[n & 3]; }
int run(int n) {
    asm volatile("nop\n\t.p2align 4" ::: "memory");
    switch (n) { case 0: return 5; case 1: return other(n); case 2: return text(n)[0]; case 3: return 8;
    case 4: return 1; case 5: return 77; case 6: return (int)exp(n); default: return 2; }
}
"""


def in_a_function(code: str) -> str:
    return f'\t.file "module.cpp"\nrun:\n#APP\n# 12 "module.cpp" 1\n\t{code}\n# 0 "" 2\n#NO_APP\n\tret\n'


IN_ASSEMBLY = ("-S", "-g", "-fPIE")


def test_ordinary_inline_assembly_is_not_flagged() -> None:
    assert [*inspection.foreign_statements(in_a_function(ORDINARY_ASSEMBLY))] == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="assembly of x86-64")
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_data_placed_by_a_compiler_is_not_flagged(level: str, tmp_path: Path) -> None:
    made = compiled(tmp_path, PLAIN_DATA, *IN_ASSEMBLY, level)
    assert [*inspection.foreign_statements(made.read_text("latin-1"))] == []


@pytest.mark.parametrize("code", HIDDEN_BYTES.replace("\n", "|").strip("|").split("|"))
def test_bytes_in_inline_assembly_are_found(code: str) -> None:
    found = [*inspection.foreign_statements(in_a_function(code.replace(r"\n", "\n")))]
    assert found and all(each.endswith("(line 12)") for each in found)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="assembly of x86-64")
@pytest.mark.parametrize("text", BYTES_BY_NAME)
def test_bytes_among_the_code_are_found_and_named(text: str, tmp_path: Path) -> None:
    compiled(tmp_path, text, *IN_ASSEMBLY, "-O1")
    subprocess.run(["cc", "-c", "kernel.s"], cwd=tmp_path, check=True)
    (flag,) = integrity.inspect_object(built(tmp_path / "kernel.o"))
    assert (flag.code, flag.level) == ("machine_code", "review") and "(after " in flag.message


@pytest.mark.skipif(platform.machine() != "x86_64", reason="assembly of x86-64")
@pytest.mark.parametrize(("code", "flags"), [("nop", []), (".quad 1", [("machine_code", "review")])])
def test_a_build_keeps_the_assembly_for_the_inspection(code: str, flags: object, tmp_path: Path) -> None:
    made = nativebuild.build(write(tmp_path, one_function(f'asm("{code}");\nreturn t;')))
    assert made.ok and made.object_path is not None and inspected(made.object_path) == flags


def sections(image: bytes) -> Iterator[tuple[int, int]]:
    (table,), count = struct.unpack_from("<Q", image, 40), image[60]
    for header in range(table, table + 64 * count, 64):
        yield header, struct.unpack_from("<I", image, header + 4)[0]


def test_an_unreadable_object_is_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = bytearray(object_of(tmp_path, PLAIN_KERNEL).read_bytes())
    assert inspected(tmp_path / "absent.so") == []
    for size in (3, 60, 100, 5000):
        cut = tmp_path / f"cut{size}.so"
        cut.write_bytes(image[:size])
        assert inspected(cut) == ([UNREADABLE] if size > 3 else [])
    name = image.index(b"__gmon_start__")
    for header, kind in sections(image):
        offset, size = struct.unpack_from("<QQ", image, header + 24)
        if kind == 3 and offset <= name < offset + size:
            struct.pack_into("<Q", image, header + 32, name + 3 - offset)
    endless = tmp_path / "endless.so"
    endless.write_bytes(image)
    assert inspected(endless) == [UNREADABLE]
    # If the program that reads objects fails or hangs, the object gets a flag, and judging goes on.
    whole = object_of(tmp_path, "int one(void) { return 1; }")
    assert inspection.inspect(whole) == ()
    (flag,) = inspection.inspect(whole, timeout_s=0.001)
    assert (flag.code, flag.level) == UNREADABLE and "more than 0.001 s" in flag.message
    (flag,) = inspection.inspect(tmp_path / "absent.so")
    assert flag.code == "unreadable_object" and "No such file" in flag.message
    monkeypatch.setattr(inspection, "MEMORY_BYTES", 1 << 20)
    (flag,) = inspection.inspect(whole)
    assert flag.code == "unreadable_object"


def test_operators_that_compute_are_flagged_and_plain_tensor_access_calls_none() -> None:
    plain = "aten::zeros aten::empty aten::zero_ aten::fill_ aten::_to_copy model_inference [memory]"
    assert integrity.operator_flags([row(name) for name in plain.split()]) == ()
    (flag,) = integrity.operator_flags([row("aten::zeros"), row("aten::matmul"), row("aten::_softmax")])
    assert flag.level == "review" and "aten::_softmax, aten::matmul" in flag.message
    # Profile torch operators that honest files call before or after a kernel. None of them may be flagged.
    with profile(use_kineto=True) as trace:
        a = torch.zeros(4, 5)
        b = torch.rand_like(a).clone().contiguous().transpose(0, 1).reshape(4, 5)
        b = b.to(torch.float64).to(torch.float32)
        a[1:, 2:] = b[1:, 2:]
        a[0].fill_(2).zero_()
        torch.allclose(a, b), torch.equal(a, b), (a - b).abs().max().item(), a.isnan().any().item()
        torch.stack([a, b]).flatten().unsqueeze(0).expand(3, -1).permute(1, 0).numel()
        torch.cat([torch.full([2], 3.0), torch.arange(2.0), torch.empty(2).normal_(), torch.ones(2)]).tolist()
    assert integrity.operator_flags([row(event.key) for event in trace.key_averages()]) == ()


def test_new_code_and_work_between_calls_are_flagged(tmp_path: Path) -> None:
    (tmp_path / "kernel.so").write_bytes(b"")
    own = ("/cache/objects/kernel.so", "/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12")
    installed = ("/usr/lib/x86_64-linux-gnu/libgomp.so.1.0.0", "/lib/x86_64-linux-gnu/libmvec.so.1")
    installed += ("/usr/lib/libgcc_s.so.1", "/usr/lib/x86_64-linux-gnu/gconv/UTF-16.so")
    others = {"/usr/lib/libopenblas.so.0": "review", "/memfd:code (deleted)": "review"}
    others["/cache/reference/libgpt149_ref-1.so"] = "rejected"
    for path in (*own, *installed, *others):
        flags = integrity.evidence_flags(Evidence(new_code=(path,)), built(tmp_path / "kernel.so"))
        assert [flag.level for flag in flags] == ([others[path]] if path in others else []), path
    # Code that a kernel has loaded itself is proof of a cheat.
    opens = "extern void *dlopen(const char *, int); void *run(char *p) { return dlopen(p, 1); }"
    made = object_of(tmp_path, opens)
    seen = Evidence(new_code=(str(made), "/usr/lib/libopenblas.so.0"))
    assert [flag.level for flag in integrity.evidence_flags(seen, built(made))] == ["rejected"]
    for seen, flags in (
        (Evidence(frozen_cpu_s=0.002, frozen_wall_s=0.01, stops=20, unstopped=2), []),
        (Evidence(frozen_cpu_s=0.3, frozen_wall_s=0.4, stops=20), [WORKS]),
        (Evidence(stops=20, unstopped=15), [SLOW_TO_STOP]),
        (Evidence(stops=20, unstopped=15, children=1), [WORKS, ("starts_processes", "review")]),
    ):
        found = integrity.evidence_flags(seen, built(tmp_path / "absent.so"))
        assert [(flag.code, flag.level) for flag in found] == flags, seen
    # Threads that use CPU time after most of many stop signals do so on purpose; after few, the system may be slow.
    assert list(integrity.late_flags([Evidence(stops=9, late=1)] * 8)) == [], "a slow system"
    assert list(integrity.late_flags([Evidence(stops=4, late=3)])) == [], "too few to be sure"
    at_work = [Evidence(stops=5, late=4), Evidence(stops=5, late=2), Evidence(stops=1)]
    assert [(flag.code, flag.level) for flag in integrity.late_flags(at_work)] == [WORKS]


def test_times_below_the_machines_limit_are_flagged() -> None:
    # The sizes are those of a usual run, with 537 million floating-point operations.
    more_cores, impossible = ("more_cores", "review"), ("impossible_time", "rejected")
    for cpu_ms, wall_ms, threads, *words in (
        *((10.0, 10.5, 1), (10.0, 5.2, 2), (11.0, 10.0, 1)),
        *((19.0, 10.0, 1, more_cores), (38.0, 5.0, 2, more_cores)),
        *((0.001, 10.5, 1, impossible), (10.0, 0.0001, 8, impossible, more_cores)),
    ):
        verdict = (10.0, cpu_ms, cpu_ms / 10, (1.0, 1.0), 0.98, 8, "cpu", 1.1, "pass", 1.0, True)
        timing = Timing(*verdict, student_cpu_ms=(cpu_ms,) * 16, student_wall_ms=(wall_ms,) * 16)
        flags = integrity.time_flags(timing, flops=4 * 4 * 1024**2 * 32, threads=threads, cores=8)
        assert [(flag.code, flag.level) for flag in flags] == words, (cpu_ms, wall_ms)
    # The assumed least possible time is right: torch's matrix product on all cores takes longer.
    a = torch.rand(1024, 1024)
    a @ a
    taken_s = timeit.timeit(lambda: a @ a, number=5) / 5
    floor_s = 2 * 1024**3 / (6e9 * integrity.flops_per_cycle()) / torch.get_num_threads()
    assert taken_s > floor_s


def digest_of(output: Array) -> str | None:
    return integrity.output_sha256(output, np.ones(output.shape, bool))


def test_outputs_have_a_digest_unless_different_bugs_give_them() -> None:
    a = np.arange(24, dtype=np.float32).reshape(4, 6) / 4
    # The digest must not change, because results of earlier versions contain it for this output.
    digest = "766b47b71a2cbb3699dbea49fb1211da6fc3f9fcb633f7ba7b3ed2075bfe69d6"
    assert digest_of(a) == digest_of(a.T.copy().T) == digest
    assert len({digest_of(one) for one in [a, a.reshape(6, 4), a + 1e-6, a.astype(np.float64), -a]}) == 5
    for nothing in (np.nan, np.inf, 0.0):
        assert digest_of(np.full_like(a, nothing)) is None
        assert integrity.output_sha256(np.where(a < 2.25, nothing, a).astype(np.float32), a < 2.25) is None


@pytest.mark.full
def test_an_object_of_many_sections_is_read_to_the_end(tmp_path: Path) -> None:
    """From 65,280 sections on, the section count in the ELF header is 0: a reader that uses it misses all symbols."""
    many = '.altmacro\\n.macro named n\\n.section .s\\\\n,\\"a\\"\\n.byte 1\\n.endm\\n.set k,0\\n'
    many += ".rept 65400\\nnamed %k\\n.set k,k+1\\n.endr\\n.text\\n"
    made = object_of(tmp_path, f'__asm__("{many}"); {loading("x")}')
    assert struct.unpack_from("<H", made.read_bytes(), 60) == (0,)
    assert inspected(made) == [("calls_the_loader", "review")]


def test_an_object_with_an_inconsistent_section_is_refused(tmp_path: Path) -> None:
    """The test changes one field of a section that the loader reads. Other sections may have any contents."""
    image = object_of(tmp_path, PLAIN_KERNEL).read_bytes()
    assert elf.parse(image).wanted
    whys = {(11, 32, 1 << 40): "beyond the end|overlap", (6, 4, 1): "no dynamic section"}
    whys |= dict.fromkeys([(11, 16, 0), (0x6FFFFFFF, 16, 8)], "name other symbol tables")
    for (kind, field, value), why in whys.items():
        changed = bytearray(image)
        header = next(header for header, found in sections(image) if found == kind)
        struct.pack_into("<Q", changed, header + field, value)
        refused(why, elf.parse, bytes(changed), of=elf.NotReadable)


def test_names_in_flags_are_short_and_harmless(tmp_path: Path) -> None:
    long = "cblas_" + "a" * 100_000
    flags = integrity.inspect_object(built(object_of(tmp_path, loading(long))))
    assert {flag.code for flag in flags} == {"calls_the_loader", "loads_a_library"}
    assert all(len(flag.message) < 200 for flag in flags)
    assert any(f"{long[:77]}..." in flag.message for flag in flags)
    assert "\x1b" not in integrity.operator_flags([row("aten::" + "x\x1b" * 500)])[0].message
    seen = Evidence(new_code=("/tmp/" + "d" * 4000 + "/libopenblas.so",))
    (flag,) = integrity.evidence_flags(seen, built(tmp_path / "absent.so"))
    assert len(flag.message) < 200 and "libopenblas.so" in flag.message
