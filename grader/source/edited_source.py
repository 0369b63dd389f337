"""A source with many small edits, all compiled into one program. A variable of the program chooses the active edit.

In `combined` each place becomes a conditional expression over the variable CHOSEN, so one compilation serves all edits.
A call whose first tensor begins with MAGIC sets the variable to the tensor's second element.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from grader.source.cpptext import Macro, blanked, definitions, macros
from grader.source.landmarks import closed
from grader.source.scopes import line_of

CHOSEN, MAGIC = "gpt149_chosen", -7.25e33
#: Limit on the depth of nested loops: comments with a depth sort closing braces in `_order`.
MOST_DEPTH = 900
#: C++ that edits use, on one line. `gpt149_kept` stores a value that is passed by reference. `gpt149_extreme` is min or
#: max, `gpt149_least` limits an integer, `gpt149_number` replaces NaN by 0, and `gpt149_set` sets a variable or all
#: elements of an array.
HELPERS = (
    "static thread_local float gpt149_kept; "
    "struct gpt149_extreme { bool least; "
    "template <class T> T operator()(T a, T b) const { return least == (b < a) ? b : a; } }; "
    "template <class T> T gpt149_least(bool is, long a, T b) { return is && a < (long)b ? (T)a : b; } "
    "template <class T> T gpt149_number(bool is, T a) { return is && a != a ? T(0) : a; } "
    "inline void gpt149_set(float& a, float v) { a = v; } inline void gpt149_set(double& a, float v) { a = v; } "
    "template <class T> void gpt149_set(T* a, float v, long n) { for (n /= sizeof(T); n-- > 0;) a[n] = v; } "
    "template <class T, decltype(sizeof 0) n> void gpt149_set(T (&a)[n], float v) { for (T& x : a) gpt149_set(x, v); } "
    "template <class C> auto gpt149_set(C& c, float v) -> decltype(c.begin(), void()) { for (auto& x : c) x = v; }"
)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*\n", re.MULTILINE)
EXTREME = re.compile(r"\b(?:std::)?(?:min|max)(?=\s*\()")


@dataclass(frozen=True)
class Edit:
    """One edit of a source. Messages show `line`, the text `old` on this line and the text `new` in its place.

    `places` are the changes to the source, as (start offset, end offset, text). A text that holds "@" is compiled
    as it is, with "@" replaced by a condition that is true only if this edit is chosen.
    """

    line: int
    old: str
    new: str
    places: tuple[tuple[int, int, str], ...]
    words: str = ""
    """Description of the edit; "" if "`new` in place of `old`" describes it."""
    declared: int = 0
    """Line that sets a variable outside of a loop, if the edit sets it inside the loop; 0 if unknown or not needed."""
    note: str = ""
    """Description of the line `declared`."""
    is_weak: bool = False
    """True if the edit can hide a mistake elsewhere, such as a tile length that makes a single tile of all rows."""
    is_sure: bool = False
    """True if the old text is surely a mistake, such as a number of bytes that was counted in floats."""

    @property
    def is_insertion(self) -> bool:
        return any("@" in new for _, _, new in self.places)

    @property
    def changes_numbers(self) -> bool:
        return self.is_insertion or any(new[:1].isdigit() or new[:1] == "-" for _, _, new in self.places)

    def lines(self, source: str) -> set[int]:
        """Return the lines of the source that this edit changes. The `line` that messages show may be another one."""
        return {line_of(source, begin) for begin, _, _ in self.places}


def ranked_edit(
    code: str,
    rank: float,
    at: int,
    old: str,
    new: str,
    places: Sequence[tuple[int, int, str]] = (),
    words: str = "",
) -> tuple[float, Edit]:
    """Return (rank, edit of the line with the offset `at`). Without `places`, the edit replaces `old` at `at`."""
    return rank, Edit(line_of(code, at), old, new, tuple(places) or ((at, at + len(old), new),), words)


def insertion(at: int, text: str) -> tuple[int, int, str]:
    """Return the place (start, end, new text) of an edit that inserts a text at an offset."""
    return at, at, text


def wrapped(span: tuple[int, int], before: str, after: str = ")") -> list[tuple[int, int, str]]:
    """Return the places of an edit that inserts one text before a span and one after it."""
    return [insertion(span[0], before), insertion(span[1], after)]


def replaced(span: tuple[int, int], new: str) -> list[tuple[int, int, str]]:
    """Return the places of an edit that uses the value `new` in place of a span, which stays in the text."""
    return wrapped(span, f"(@ ? {new} : ")


def scaled(at: int, factor: str) -> tuple[int, int, str]:
    """Return the place of an edit that multiplies the value before an offset by a factor."""
    return insertion(at, f" * (@ ? {factor} : 1)")


def combined(source: str, function: str, edits: Sequence[Edit], bad: Collection[Edit] = ()) -> str:
    """Return the source with all edits in it, numbered from 1, except those in `bad`.

    The code that sets CHOSEN begins the body of `function`. Returns "" if the source does not define the function, or
    its first parameter is not a tensor. One line is added after the includes: later line numbers are one higher.
    """
    code = blanked(source)
    body = next((each for each in definitions(code) if each.name == function), None)
    if body is None:
        return ""
    tensor = re.match(r"\s*(?:const\s+)?(?:at|torch)::Tensor\s*&?\s*(\w+)", code[body.opened :])
    if tensor is None:
        return ""
    places, whole = dict[tuple[int, int], list[tuple[int, str]]](), _whole(edits, bad)
    for number, edit in enumerate(edits, 1):
        for begin, end, new in edit.places if edit in whole else ():
            places.setdefault((begin, end), []).append((number, new))
    for (begin, end), texts in places.items():
        if begin == end:
            texts.sort(key=lambda one: (*_order(one[1]), _nesting(edits[one[0] - 1], begin)))
    changes = [(begin, end, _chosen(source[begin:end], new)) for (begin, end), new in places.items()]
    gives = tensor[1] if re.search(r"Tensor\s+$", code[: body.start]) else ""
    first = f"{tensor[1]}.data_ptr<float>()"
    choice = f" if ({first}[0] == {MAGIC!r}f) {{ {CHOSEN} = (int){first}[1]; return {gives}; }} "
    changes.append((body.body, body.body, choice))
    used = code[: min(body.start, *(begin for begin, _, _ in changes))]
    at = max((one.end() for one in _INCLUDE.finditer(used)), default=0)
    changes.append((at, at, f'_Pragma("GCC optimize(\\"O0\\")") static int {CHOSEN} = 0; {HELPERS}\n'))
    text, done = "", 0
    for begin, end, new in sorted(changes):
        if begin >= done:
            text += source[done:begin] + new
            done = end
    return text + source[done:]


def _whole(edits: Sequence[Edit], bad: Collection[Edit]) -> set[Edit]:
    """Return the edits, except those in `bad`, that other edits leave intact.

    An edit is left out if one of its places is inside a text that another edit replaces. It is also left out if its
    brackets enclose only one of another edit's brackets.
    """
    replaced, done = list[tuple[int, int]](), 0
    for begin, end in sorted({place[:2] for edit in edits if edit not in bad for place in edit.places}):
        if begin < end and begin >= done:
            replaced.append((begin, end))
            done = end
    begins, spans = [begin for begin, _ in replaced], set(replaced)

    def is_lost(begin: int, end: int) -> bool:
        if begin < end:
            return (begin, end) not in spans
        around = bisect_right(begins, begin) - 1
        return around >= 0 and begins[around] < begin < replaced[around][1]

    kept = {
        edit for edit in edits if edit not in bad and not any(is_lost(*place[:2]) for place in edit.places)
    }
    opened = list[int]()
    for edit in sorted(kept, key=lambda edit: (edit.places[0][0], -edit.places[-1][1])):
        (begin, _, new), last = edit.places[0], edit.places[-1][1]
        if new.count("(") > new.count(")"):
            while opened and opened[-1] <= begin:
                opened.pop()
            if opened and opened[-1] < last:
                kept.remove(edit)
            else:
                opened.append(last)
    return kept


def number_before(text: str, line: int, column: int) -> int:
    """Return the number of the last edit that begins before a column (in bytes) of a line of `combined`; 0 for none."""
    row = "".join(text.split("\n")[line - 1 : line]).encode()[:column]
    found = re.findall(rb"%s == (\d+)" % CHOSEN.encode(), row)
    return int(found[-1]) if found else 0


def function_macros(code: str) -> list[Macro]:
    """Return the macros with parameters that have one line."""
    return [macro for macro in macros(code) if macro.parameters is not None and "\n" not in macro.text]


def bracketed(source: str, used: Collection[str]) -> tuple[str, list[int]]:
    """Return (source with brackets around texts and parameters of the macros `used`, numbers of the changed lines)."""
    code, text, lines, names = blanked(source), source, list[int](), set(used)
    for macro in reversed(function_macros(code)):
        parameters, body = macro.parameters, macro.text.strip()
        if macro.name not in names:
            continue
        names.update(re.findall(r"\w+", body))  # macros that this one uses
        if not parameters or re.search(r"[;{#]", body):
            continue
        new = re.sub(
            rf"(?<![\w(])(?:{'|'.join(parameters)})\b|(?<=\()(?:{'|'.join(parameters)})\b(?!\))",
            r"(\g<0>)",
            body,
        )
        is_whole = body.startswith("(") and closed(body, 1, "()") == len(body)
        if not is_whole and not re.fullmatch(r"\w+\s*\[[^][]*\]", body):
            new = f"({new})"
        if new != body:
            text = f"{text[: macro.begin]} {new}{text[macro.end :]}"
            lines.insert(0, line_of(code, macro.begin))
    return text, lines


def _chosen(old: str, new: Sequence[tuple[int, str]]) -> str:
    """Return C++ that acts like `old`, unless CHOSEN is the number of a pair in `new`: then like the pair's text.

    `new` holds pairs (number of an edit, text). If the first text holds "@", or `old` is "", the texts are inserted.
    """
    if not old or "@" in new[0][1]:
        return "".join(text.replace("@", f"{CHOSEN} == {number}") for number, text in new)
    if old.endswith(";"):
        others = "".join(f"if ({CHOSEN} == {number}) {text or ';'} else " for number, text in new)
        return f"{{ {others}{old} }}"
    if EXTREME.match(f"{old}("):
        return f"gpt149_extreme{{({CHOSEN} == {new[0][0]}) != {'true' if old.endswith('min') else 'false'}}}"
    # Check the range first: if the chosen edit is at another place, the chain of conditions is skipped.
    chain = "".join(f"{CHOSEN} == {number} ? {text} : " for number, text in new)
    return f"({CHOSEN} < {new[0][0]} || {CHOSEN} > {new[-1][0]} ? {old} : {chain}{old})"


def _order(text: str) -> tuple[int, str]:
    """Return the key that sorts the insertions at one place.

    Closing braces come first, in the order of the comments before them. Then come statements, conditions (`if (`) of
    the statement that begins here, expressions before it (`x = 0, `), factors and divisors, and the rest.
    """
    if text.count("}") > text.count("{"):
        return 0, text[:7]
    if text.rstrip().endswith((";", "}")):
        return 1, ""
    if text.startswith("if (") or text.endswith(", "):
        return 2, text[-2:] if text.endswith(", ") else ""
    return 3 if text.lstrip()[:1] in "*/" else 4, ""


def _nesting(edit: Edit, at: int) -> tuple[int, int]:
    """Return the key that sorts edits with insertions at one place, so that the spans which they wrap are nested.

    Spans that end here come first, the shortest first. Then come spans that begin here, the longest first.
    """
    first, last = edit.places[0][0], edit.places[-1][1]
    if first < at == last:
        return 0, -first
    return (1, -last) if first == at < last else (2, 0)
