"""Categories of the functions that a kernel imports, by their symbols. `grader.integrity.inspection` flags them.

A student's own kernel needs memory, tensors, mathematical functions of the C library and threads. Other functions have
a category here if torch computes in them in place of the student, or if they affect the process or the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re

from grader.integrity.elf import UndefinedSymbol

#: Torch operators that make, view, copy, fill, read or compare tensors, or add and multiply their elements.
_PLAIN = """
    alias allclose arange as_strided cat chunk clone concat contiguous copy copy_ detach diagonal empty empty_like
    empty_permuted empty_strided equal expand expand_as eye fill fill_ flatten flip full full_like index index_put
    index_put_ index_select is_contiguous is_nonzero isclose isfinite isinf isnan item lift_fresh linspace
    movedim moveaxis narrow new_empty new_empty_strided new_full new_ones new_zeros normal_ numel ones ones_like
    permute rand rand_like randint randn randn_like reshape resize resize_ resolve_conj resolve_neg scalar_tensor
    select set_ size slice split split_with_sizes squeeze squeeze_ stack stride swapaxes swapdims t tensor_split to
    transpose transpose_ t_ unbind unfold uniform_ unsafe_chunk unsafe_split unsqueeze unsqueeze_ view view_as zero
    zero_ zeros zeros_like eq ne lt le gt ge any all max min amax amin argmax argmin nonzero abs neg add add_
    sub sub_ mul mul_ div div_
    manual_seed random_ result_type type_as
"""
PLAIN_OPERATORS = frozenset(_PLAIN.split())
"""Operators of torch that do not raise a flag. `max`, `abs`, `sub` and the like are included, because people compare
outputs with them to find a bug. Sums over an index (sum, mean, matmul) and exponentials are not included, because they
may be the student's task.
"""

LONGEST_OPERATOR = 200
"""Longest name of an operator that is looked up, with its overload. The longest name in torch has 67 letters."""

_INNER = """
    _to_copy _local_scalar_dense _reshape_alias _unsafe_view _efficientzerotensor _index_put_impl_ _cat _aminmax
    is_same_size is_floating_point is_complex logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not
    __iand__ __ior__ __and__ __or__
"""
INNER_OPERATORS = frozenset(_INNER.split())
"""Operators that plain operators call, so that the profiler shows them."""

#: Namespaces and classes of torch and its libraries that compute, or that call operators in unusual ways.
_COMPUTING = re.compile(
    r"at::(?:native|cpu|vml|redispatch|meta|compositeimplicitautograd|compositeexplicitautograd(?:nonfunctional)?|linalg|sparse)::"
    r"|c10::(?:Dispatcher|OperatorHandle|impl::OperatorEntry)\b"
    r"|torch::(?:nn|jit|linalg|special|fft|inductor|aot_inductor|autograd::generated)::"
    r"|(?:dnnl|mkldnn|ideep|fbgemm|gloo|onednn|caffe2::math|Sleef)::"
)
#: Functions that switch torch's recording of its operators off, or query its state.
_HIDING = re.compile(
    r"at::(?:RecordFunction|RecordFunctionGuard|enableRecordFunction|isRecordFunctionEnabled|hasCallbacks"
    r"|hasThreadLocalCallbacks|hasGlobalCallbacks|clearCallbacks|clearThreadLocalCallbacks|clearGlobalCallbacks"
    r"|removeCallback|disableCallback|getStepCallbacks|getStepCallbacksUnlessEmpty)\b"
    r"|torch::(?:autograd::)?profiler::"
)

#: Functions of the C library, by category. The function `syscall` is left out, because the C++ library calls it to wait
#: for an atomic variable. The sandbox's filter refuses dangerous system calls by their numbers.
_CATEGORIES = {
    "loader": "dlopen dlmopen dlsym dlvsym dlinfo dladdr dladdr1 dl_iterate_phdr _dl_find_object _r_debug "
    "__libc_dlopen_mode __libc_dlsym _dl_sym",
    "process": "fork vfork _Fork clone execl execle execlp execv execve execvp execvpe fexecve execveat system popen "
    "posix_spawn posix_spawnp daemon setsid wordexp",
    "outside": "ptrace process_vm_readv process_vm_writev kill killpg sigqueue tgkill pidfd_open pidfd_send_signal "
    "shm_open memfd_create shmget shmat",
    "cores": "sched_setaffinity pthread_setaffinity_np pthread_attr_setaffinity_np",
    "priority": "sched_setscheduler setpriority nice",
    "network": "socket socketpair connect bind listen accept accept4 sendto recvfrom sendmsg recvmsg getaddrinfo "
    "gethostbyname",
}
_CATEGORY_OF = {name: category for category, names in _CATEGORIES.items() for name in names.split()}
_PYTHON_RUNS = re.compile(
    r"Py(?:Run_|Import_|Eval_Eval|Eval_Call|Eval_Set|Sys_|_CompileString)|_?PyObject_(?:Call|Vectorcall)"
)

#: Symbols without a version that come from linkers, compilers, sanitizers, OpenMP, Python and ISPC, not from torch.
_NEUTRAL = re.compile(
    r"__gmon_start__$|_ITM_|_Jv_|__cxa_|_Unwind_|__gxx_|__asan|__ubsan|__tsan|__lsan|__sanitizer|__tls_|__dso|__stack_chk"
    r"|__start_|__stop_|__intel_|__svml|__libc_|__gcov|__llvm|GOMP_|GOACC|omp_|ompc_|__kmpc_|kmp_|_?Py|ISPC"
)
_BLAS = re.compile(
    r"(?i)(?:cblas_|mkl_|lapacke_|openblas_|dnnl_|sleef_|xnn_|nnp_)|[sdczbh]+(?:gemm|gemv|dot|axpy|syrk|trsm|scal)[a-z_]*\d*_?$"
)


def category(symbol: UndefinedSymbol, *, versions: bool) -> str | None:
    """Return the category of an imported function; None for a function that any kernel may use.

    Categories:
      torch: computes. hiding: hides torch operators. loader: loads libraries at run time. process: starts processes.
      outside: acts on other processes or the system. cores, priority: sets those of threads. network: opens sockets.
      python: runs Python code.

    `versions`: True if any symbol of the object has a version. A C function without a version then comes from torch's
    libraries, such as BLAS. Exceptions are functions of the C library and those that _NEUTRAL matches.
    """
    name = symbol.name
    if name.startswith("_Z"):
        return _of_cxx(qualified_name(name))
    if _PYTHON_RUNS.match(name):
        return "python"
    if name in _CATEGORY_OF:
        return _CATEGORY_OF[name]
    foreign = versions and not symbol.versioned and not _NEUTRAL.match(name)
    foreign = foreign and not any(hasattr(library, name) for library in _c_libraries())
    return "torch" if foreign or _BLAS.match(name) else None


@functools.cache
def _c_libraries() -> tuple[ctypes.CDLL, ...]:
    found = []
    for name in ("libc.so.6", "libm.so.6"):
        with contextlib.suppress(OSError):
            found.append(ctypes.CDLL(name))
    return tuple(found)


def _of_cxx(name: str) -> str | None:
    if operator := re.match(r"at::_ops::(\w+)::", name):
        return None if is_plain_operator(operator[1]) else "torch"
    if _HIDING.match(name):
        return "hiding"
    return "torch" if _COMPUTING.match(name) else None


def is_plain_operator(name: str) -> bool:
    """Return True for the name of a plain operator, with or without overload ("fill__Scalar", "aten::fill_")."""
    name = name.removeprefix("aten::").partition(".")[0]
    if len(name) > LONGEST_OPERATOR:
        return False
    while name:
        if name in PLAIN_OPERATORS or name.lstrip("_") in PLAIN_OPERATORS or name in INNER_OPERATORS:
            return True
        # The overload's name follows an underscore. Operators and overloads may have further ones: try each in turn.
        name = name.rpartition("_")[0]
    return False


_PREFIX = re.compile(r"_Z(?:T[VTIS]|GV|GTt)?")
_QUALIFIERS = re.compile(r"N[rVKRO]*")
_LENGTH = re.compile(r"L?(\d{1,9})(?!\d)")
"""The length in front of a name. A real length has at most nine digits."""
_DIGITS = re.compile(r"\d+")


def qualified_name(mangled: str) -> str:
    """Return the namespaces, classes and name of a C++ symbol, without template arguments and parameters.

    Reads <nested-name> and <unscoped-name> of the Itanium C++ ABI (5.1.2), as far as `category` needs them. Returns the
    class for an operator of a class, and "std::string" for each abbreviation of the standard library (Ss, Sa, ...).
    Returns "" for other symbols without a name (operators, guards). The time is linear in the symbol's length.
    """
    prefix = _PREFIX.match(mangled)
    at = prefix.end() if prefix else 0
    qualifiers = _QUALIFIERS.match(mangled, at)
    nested = qualifiers is not None
    at = qualifiers.end() if qualifiers else at
    names = []
    if mangled.startswith("St", at):
        names, at = ["std"], at + 2
    elif mangled[at : at + 1] == "S" and mangled[at + 1 : at + 2] in tuple("absiod"):
        return "std::string"
    while length := _LENGTH.match(mangled, at):
        at = length.end() + int(length[1])
        names.append(mangled[length.end() : at])
        if not nested:
            break
        if mangled.startswith("I", at):
            at = _after_template_arguments(mangled, at)
    return "::".join(names)


def _after_template_arguments(text: str, at: int) -> int:
    """Return the offset after the template arguments `I...E` that begin at the offset `at`.

    Names in the arguments are skipped by their lengths. Groups open with I, N, X, J or F, close with E, and may nest.
    """
    depth = 0
    while at < len(text):
        if digits := _DIGITS.match(text, at):
            at = digits.end() + int(digits[0]) if len(digits[0]) < 10 else len(text)
            continue
        letter = text[at]
        if letter == "L":
            # L begins a literal argument, such as Lb1E, which ends at the next E.
            end = text.find("E", at)
            at = len(text) if end < 0 else end + 1
            continue
        depth += (letter in "INXJF") - (letter == "E")
        at += 2 if letter == "S" else 1
        if depth == 0:
            break
    return at
