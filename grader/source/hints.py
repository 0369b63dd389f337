"""Hints for compiler errors that are common in a first C++ kernel: a table from the compiler's messages to advice."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable

from grader.source.cpptext import blanked, definitions, without_comments

#: Names that a first kernel often uses, with their headers.
HEADERS = {
    "omp_get_thread_num": "<omp.h>",
    "omp_get_max_threads": "<omp.h>",
    "omp_get_num_threads": "<omp.h>",
    "gettimeofday": "<sys/time.h>",
    "assert": "<cassert>",
    "printf": "<cstdio>",
    "memcpy": "<cstring>",
    "memset": "<cstring>",
    "FLT_MAX": "<cfloat>",
    "INFINITY": "<cmath>",
}
STD_NAMES = frozenset(
    {"vector", "string", "cout", "cerr", "endl", "min", "max", "pair", "accumulate", "fill", "swap"}
)
LEAST_LIKENESS, LONGEST_WORD, MOST_COMPARED = 0.75, 60, 100
"""Limits for the search of a misspelt name: least similarity (0 to 1), longest name, most names that are compared."""
LONGEST_MESSAGE = 1000
LARGEST_LOOKED_AT = 1 << 16
"""Number of characters at the start of a source by which binary files are recognised."""
MISMATCH = "target specific option mismatch"
"""Words of gcc's error for an intrinsic whose instruction set is not enabled. The header's name shows which set."""
Hint = Callable[[re.Match[str], int, str], str]


def hint_for(message: str, line: int, source: str, header: str = "") -> str:
    """Return one or two sentences of advice on the error `message` at `line` of `source`; "" if none fits.

    `header` is the file name of the header in which the compiler noticed the error.
    """
    message = message[:LONGEST_MESSAGE]
    if header and MISMATCH in message:
        message = f"{message} in {header[:LONGEST_WORD]}"
    for pattern, hint in HINTS:
        match = re.search(pattern, message)
        if match and (advice := hint if isinstance(hint, str) else hint(match, line, source)):
            return advice
    return ""


def _row(source: str, line: int) -> str:
    rows = source.split("\n")
    return rows[line - 1] if 1 <= line <= len(rows) else ""


def _undeclared(match: re.Match[str], line: int, source: str) -> str:
    name = match["name"]
    if name in HEADERS:
        return f"{name} comes from {HEADERS[name]}: add '#include {HEADERS[name]}' at the top."
    if name in STD_NAMES:
        return f"write std::{name}."
    near = _nearest(name, source)
    if near:
        return f"did you mean '{near}'? Upper and lower case count."
    return (
        f"'{name}' is not declared here: look for a misspelling, or a declaration in another block or below."
    )


def _nearest(name: str, source: str) -> str:
    """Return the word most similar to `name` among the source's functions and repeated words; "" if none is similar.

    A comparison takes time quadratic in the words' length. So only the words that share the most letters are compared.
    """
    if len(name) > LONGEST_WORD:
        return ""
    counts = Counter(re.findall(r"\w+", source))
    words = set(re.findall(r"[A-Za-z_]\w{1,}", without_comments(source)))
    used = {word for word in words if counts[word] > 1 and len(word) <= LONGEST_WORD}
    used = (used | set(_functions(source))) - {name}
    letters, common = Counter(name), {}
    for word in used:
        # Compute an upper bound of difflib's similarity, because it costs less.
        shared = sum(min(count, word.count(letter)) for letter, count in letters.items())
        if 2 * shared >= LEAST_LIKENESS * (len(name) + len(word)):
            common[word] = shared / (len(name) + len(word))
    closest = sorted(common, key=lambda word: (-common[word], word))[:MOST_COMPARED]
    return next(iter(difflib.get_close_matches(name, sorted(closest), n=1, cutoff=LEAST_LIKENESS)), "")


def _call(match: re.Match[str], line: int, source: str) -> str:
    row = _row(source, line)
    name = match["name"]
    wanted = _functions(source).get(name, [])
    if wanted and not _same_count(row, name, len(wanted)):
        return (
            f"the parameters are {name}({', '.join(wanted)}): compare their number and order with this call."
        )
    return (
        "compare the number, the order and the types of the arguments with the function's declaration. "
        "A parameter 'int &x' takes only a variable: put constants and sums into one first, or write 'int x'."
    )


def _functions(source: str) -> dict[str, list[str]]:
    """Return the names of the parameters of each function in a source, by the function's name.

    Functions that can be called in several ways (overloads, default arguments) get [].
    """
    found: dict[str, list[str]] = {}
    code = blanked(source)
    for one in definitions(code):
        name, parameters = one.name, code[one.opened : one.closed]
        if len(name) <= LONGEST_WORD and len(parameters) <= LONGEST_MESSAGE:
            several = name in found or "=" in parameters or "(" in parameters
            plain = re.sub(r"<[^<>]{0,200}>", "", parameters)
            words = [re.findall(r"\w+", one) for one in plain.split(",")]
            found[name] = [] if several else [word[-1] for word in words if word]
    return found


def _same_count(row: str, name: str, wanted: int) -> bool:
    """Return True if the call of `name` in this row has `wanted` arguments, or if it continues in the next row."""
    start = row.find(name)
    opening = row.find("(", start)
    if start < 0 or opening < 0:
        return True
    depth, count = 0, 1
    for at, character in enumerate(row[opening:], opening):
        depth += (character in "([{") - (character in ")]}")
        count += character == "," and depth == 1
        if depth == 0:
            return count * bool(row[opening + 1 : at].strip()) == wanted
    return True


def _header(match: re.Match[str], line: int, source: str) -> str:
    name = match["name"]
    if name.endswith("_ispc.h"):
        return (
            "ISPC makes the header module_ispc.h out of module.ispc, and no module.ispc lies beside this file: hand it "
            "in too, under that name (the file may be empty if your code calls no ISPC)."
        )
    return (
        "there is no such header: check its name. Of the files beside this one only module.ispc is handed in."
    )


def _stray(match: re.Match[str], line: int, source: str) -> str:
    """Return the hint for a stray character: a pasted typographic quote, UTF-16 (many zeros) or a binary file."""
    letters = source[:LARGEST_LOOKED_AT]
    if letters.count("\0") * 3 > len(letters):
        return "the file is UTF-16, as PowerShell's '>' and some editors write it: save it as UTF-8."
    if sum(letter < " " and letter not in "\t\n\v\f\r" for letter in letters) * 50 > len(letters):
        return (
            "the file is not text: it may be a program, an archive or a document. Hand in the source itself."
        )
    return "a character that is not C++: often a typographic quote or dash from a document."


def _instructions(match: re.Match[str], line: int, source: str) -> str:
    """Return the hint for an intrinsic whose instructions are not enabled: an attribute and a pragma enable them."""
    found = match.groupdict()
    isa, name = found.get("isa") or "avx2", found.get("name") or ""
    wanted, note = ISAS.get(isa, isa), ""
    if isa.startswith("avx512"):
        extensions = re.findall(r"fp16|bf16|f|cd|dq|bw|vl|vnni|vbmi2?|ifma|bitalg|vpopcntdq", isa[6:])
        wanted = ",".join(f"avx512{each}" for each in extensions) or "avx512f"
        note = " Machines without AVX-512 cannot run the file: AVX2 runs on more machines."
    target = f'target("{wanted}")'
    needs = f"{name} needs" if name and not name.startswith("__builtin") else "this needs"
    return (
        f"{needs} instructions beyond the -mavx of the command line: put __attribute__(({target})) before each "
        f"function that uses them, or '#pragma GCC {target}' above the first #include, which also holds for "
        f"lambdas.{note}"
    )


ISAS = {"avx2": "avx2,fma", "fma": "avx2,fma", "wmm": "aes,pclmul"}
"""Target for the attribute by the compiler's name for an instruction set. Other names are themselves the target."""
_LVALUE = (
    "a parameter 'int &x' (or 'float &x') takes only a variable: put the constant or the sum into a variable first, "
    "or declare the parameter 'int x'."
)
_TENSOR_ELEMENT = (
    "an element of an at::Tensor is again a tensor, not a float: use tensor.data_ptr<float>() and compute the offset, "
    "tensor[i][j].item<float>(), or formatTensor and the accessors."
)
_BRACE = "a '{' further up is never closed: check the braces of the functions and loops above."

#: Patterns of messages of gcc and clang with their advice. The first that matches and gives advice is used.
HINTS: tuple[tuple[str, Hint | str], ...] = (
    (r"redefinition of .*gpt149_", "the file has PYBIND11_MODULE more than once: bind everything in one."),
    (rf"(?:'[^']*?(?P<name>\w+)\([^']*': )?{MISMATCH}(?: in (?:x86)?(?P<isa>\w+?)intrin\.h)?", _instructions),
    (
        r"'(?P<name>\w+)' (?:needs isa option -m|(?:requires|needs) target feature '?)(?P<isa>\w+)",
        _instructions,
    ),
    (r"(?P<name>[\w/.+-]+): No such file or directory", _header),
    (r"'(?P<name>[^']+)' file not found", _header),
    (r"expected '\}'", _BRACE),
    (r"function[- ]definition is not allowed here|qualified-id in declaration before '\('", _BRACE),
    (r"expected declaration before '\}'|extraneous closing brace", "there is one '}' too many."),
    (
        r"expected ',' or ';'",
        "a semicolon is missing before the caret, perhaps at the end of the line above.",
    ),
    (r"expected ';'|expected ','", "a semicolon (or a comma) is missing at the caret."),
    (r"expected '\)'", "a ')' is missing, or an operator between two names."),
    (
        r"expected primary-expression|expected expression",
        "an operand is missing here: look for a doubled comma or operator, or a type name inside a call.",
    ),
    (r"missing terminating", "a quotation mark is not closed on this line."),
    (r"stray '", _stray),
    (r"'(?P<name>\w+)' was not declared in this scope", _undeclared),
    (r"use of undeclared identifier '(?P<name>\w+)'", _undeclared),
    (
        r"'(?P<name>\w+)' is not a member of 'std'|no member named '(?P<other>\w+)' in namespace 'std'",
        "check the name; each function of the standard library also needs its own #include.",
    ),
    (
        r"cannot bind non-const lvalue reference|expects an lvalue|invalid initialization of non-const ref",
        _LVALUE,
    ),
    (r"too (few|many) arguments to function '[^']*?(?P<name>\w+)\(", _call),
    (r"no matching function for call to '(?P<name>\w+)", _call),
    (r"too (few|many) arguments", "compare the number of arguments with the function's declaration."),
    (r"(?:from|convert) '(?:const )?at::Tensor' to|invalid (operands|types).*at::Tensor", _TENSOR_ELEMENT),
    (r"no match for 'operator.*at::Tensor", _TENSOR_ELEMENT),
    (
        r"invalid types? '(float|int)\[|subscripted value is not",
        "this variable is a single number, so it has no elements: did you mean the vector or the pointer?",
    ),
    (
        r"with no type|requires a type specifier",
        "a function or variable needs its type in front of its name ('void', 'float', 'torch::Tensor' ...).",
    ),
    (
        r"does not name a type|unknown type name",
        "this is not a known type: look for a misspelling, a statement outside any function, or an extra '}' above.",
    ),
    (
        r"redefinition of|redeclaration of|redeclared|conflicting declaration",
        "this name is already declared with the same or another type in this block: rename one of the two.",
    ),
    (
        r"has no member named '(?P<name>\w+)'|no member named",
        "this type has no such member: check the spelling, and whether the variable has the type you think.",
    ),
    (r"return-statement with a value|should not return a value", "a 'void' function returns nothing."),
    (r"return-statement with no value|should return a value", "this function must return a value here."),
    (r"read-only", "this is 'const': it can only be read."),
    (
        r"lvalue required|not assignable",
        "the left of '=' must be a variable or an element; an accessor's result can only be read.",
    ),
    (
        r"not perfectly nested|not enough (nested|for) loops|canonical",
        "collapse(n) needs n 'for' loops directly inside one another, with nothing between their heads.",
    ),
    (r"expected (unqualified-id|initializer|constructor)", "look at the end of the line before this one."),
)
