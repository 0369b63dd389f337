"""Search for the lines of a student's function that explain a wrong result.

Regular expressions find lines such as reads of an argument, calls of exp, and loops with other bounds than 0 and a
size. Comments and literals are ignored. The meaning of the code is not analysed.

The text is untrusted and is read in the judge's process. Names are matched as words and looked up in a set, so the time
is linear in the text. A function of more than LARGEST_BODY characters or MOST_LINES lines is not searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from grader.core.harmless import harmless
from grader.source.cpptext import apart, blanked, definition, definitions, named_numbers, parameter_names

LARGEST_SOURCE, LONGEST_LINE = 1 << 20, 400
LARGEST_BODY, MOST_LINES = 1 << 17, 4000
#: Limit on divisions, and on lines that change a divisor, that are compared.
MOST_DIVISIONS = 8
#: Limit on the arrays that `never_begun` examines, and on the lines for which `updates`, `around_weights`, `summing`
#: and `leaves` look for enclosing loops.
_MOST_EQUAL = 16
_PLAIN_LOOP = re.compile(
    r"^[\w:\s*&]*?\w+\s*=\s*(?:0|[A-Za-z_][\w.]*)\s*;\s*\w+\s*<\s*[\w.]+(?:\s*\*\s*[\w.]+)*\s*;\s*(?:\+\+\s*\w+|\w+\s*\+\+|\w+\s*\+=\s*(?:1|[A-Za-z_]\w*))\s*$"
)
#: A loop over the rest (`; i < N; i++`) after a loop over whole blocks (`; i + 8 <= N; i += 8`). Groups: counter, end.
_REST = re.compile(r"^\s*;\s*(\w+)\s*<\s*(\w+)\s*;\s*(?:\+\+\s*\w+|\w+\s*\+\+)\s*$")
_BLOCKS = re.compile(r";\s*(\w+)\s*\+\s*\w+\s*<=?\s*(\w+)\s*;\s*\1\s*\+=\s*\w+\s*$")
_WHOLE = re.compile(
    r"^\s*(?:(?:const|static|unsigned)\s+)*(?:int|long|short|(?:std::)?size_t|unsigned|auto|(?:std::)?u?int\d+_t)\s+\w+\s*="
)
#: An assignment or a call that sets elements to zero.
_ZEROED = re.compile(
    r"[\])]\s*=\s*0[.0f]*\s*;|\bmemset\s*\([^;]*,\s*0\s*,|\b(?:fill\w*|assign|\w*[Ww]rite\w*|\w*[Ss]et\w*)\s*\([^;]*\b0[.0f]*\s*\)"
)
#: A sum that begins at zero only in the first turn of a loop: `k == 0 ? 0 : ...`, `if (k == 0) x = 0`.
_RESTART = re.compile(r"\b(\w+)\s*==\s*0\s*(?:\?\s*0[.0f]*\s*:|\)[^;]*=\s*0[.0f]*\s*;)")
#: A division. Groups: dividend and divisor, or the bracket next to the `/` if one of them is not a single word.
_DIVISION = re.compile(r"([\w.]+|[\])])\s*/=?\s*(?!/)([\w.]+|\()")
#: A quotient of whole numbers, rounded up: `(n + T - 1) / T`.
_ROUNDED_UP = re.compile(r"\(\s*\w+\s*\+\s*(\w+)\s*-\s*1\s*\)\s*/\s*\1\b")
_NUMBER = re.compile(r"\d+[uUlL]*$")
_LEFT = r"\b(?:break|return|goto|throw)\b"
_STEPPING = re.compile(r"\b(\w+)\s*[<>=!]+[^;]*;(?:[^;]*,)?\s*\1\s*(?:\+=\s*(?!1\s*$)|=\s*\w+\s*\+)")
#: The array in `name[...] =`. A lookahead finds it, so that arrays inside its brackets can be found, too.
_ELEMENT_SET = re.compile(r"\b(?=([A-Za-z_]\w*)\s*\[[^;]*\]\s*[-+*/]?=(?!=))")
_HANDED_TO_WRITER = re.compile(r"\b(?=\w*(?:[Ww]rite|[Ss]et|[Ss]tore|[Pp]ut)\w*\s*\(\s*([A-Za-z_]\w*))")
#: The array to which a function of the standard library copies, as its last or first argument. Copies into a tensor's
#: memory, as in `fillTensor`, are left out.
_COPIED_TO = re.compile(
    r"\bcopy(?:_n)?\s*\((?:[^;()]|\([^;()]{0,80}\)){0,160},\s*&?\s*"
    r"(?=([A-Za-z_]\w*)\b(?!\s*\.\s*data_ptr)[^;,]{0,80}\)\s*;)"
)
_FILLED = re.compile(r"\b(?:fill_n|mem(?:cpy|move))\s*\(\s*&?\s*(?=([A-Za-z_]\w*))")
_VALUE_SET = re.compile(r"(?<![\w.>])(?=([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*){0,3}(?:[-+*/%]?=(?!=)|\+\+|--))")
#: A variable that is initialised in braces, such as a view over memory: `Matrix S{QK_t.data(), N}`.
_BRACED = re.compile(r"\b(\w+)\s*\{\s*([^{};]{0,200})\}")
#: A vector that is initialised in parentheses: `vector<float> l(p, p + N);`.
_VECTOR = re.compile(r"(?<=\w>\s)(\w+)\s*\(\s*(\w+\s*\.\s*(?:data|begin)[^{};]{0,200})\)\s*;")
#: The text before a name in a declaration: a type or a comma, then a blank, * or &.
_DECLARES = re.compile(r"[\w>,](?:\s*[*&]\s*|\s+)$")
#: The beginning of a declaration of numbers, which cannot share memory.
_DECLARES_NUMBERS = re.compile(
    r"(?:^|[;{(])\s*(?:const\s+|static\s+)*(?:float|double|bool|long|int\w*|unsigned|size_t|auto)\b[^;{*&]*$"
)
#: A call that makes a pointer to a tensor's memory, or a copy of it: `ptr(X)`.
_POINTS_INTO = re.compile(r"[\w:]+(?:<[^<>]*>)?\s*\(\s*([A-Za-z_]\w*)\s*\)$")
_ASSIGNED = re.compile(r"\b(\w+)\s*=(?!=)([^=,;]{0,200})")
#: The assignment of a value with an index or a call, but not of exp().
_READS_FIRST = re.compile(r"(?<![-+*/%<>=!])=(?!=)(?![^;]*\b\w*exp\w*\s*\()[^;]*[\[(]")
#: `sum += expression`: the sum's name, its index if it is an element (`S(i, j)`, `S[i]`), and the expression.
_ADDED = re.compile(r"([A-Za-z_]\w*)\s*(\[[^;=]*\]|\([^;=]*\))?\s*\+=(.*)")
_SUM = re.compile(r"\w[\w\])]*\s*\+=|\b(?:accumulate|reduce|inner_product)\s*[<(]")
_WORD = re.compile(r"[A-Za-z_]\w*")
#: The rest of an assignment to an element, if it has no index and no call: ` = sum * 2` in `y[i] = sum * 2;`.
_PLAIN_VALUE = re.compile(r"(?<=\])\s*[-+*/%&|^]?=(?!=)(?!\s*\*)[^][()=;]*(?=;)")
#: _READ: the index of an element, or a call that reads. _STORED_VALUE: the value that an assignment or a call stores.
_READ = re.compile(r"(?<=[\w\]])\s*\[[^\[\]]*\]|\b(?!\w*(?:[Ww]rite|[Ss]et|[Ss]tore))(\w+)\s*\([^()]*\)")
_STORED_VALUE = re.compile(r"(?:(?<![-+*/<>=!])=(?!=)|\w*(?:[Ww]rite|[Ss]et|[Ss]tore)\w*\s*\(.*,)([^=,;]*);")
_PRODUCT_AND_TERM = re.compile(r"[\w)]\s*\*\s*[\w(].*\+|\+.*[\w)]\s*\*\s*[\w(]")
#: An expression that reads one element of an array.
_ELEMENT = re.compile(r"\s*(?:\w*[rR]ead\w*\s*\(\s*)?([A-Za-z_]\w*)\s*(?:\[|$)")
_BARE_TYPE = r"(?:float|double|int|long|short|unsigned|size_t|auto)"
_BARE = re.compile(rf"^\s*{_BARE_TYPE}\s+(\w+\s*(?:,\s*\w+\s*)*|\w+\s*\[[^\]]*\]\s*);")
_TYPE_OPENED = re.compile(r"\b(?:struct|class|union)\b[^;(){}]{0,200}\{")
#: A variable that becomes the maximum of itself and another number: by max(), by `if`, or by `?:`.
_TAKES_LARGER = re.compile(
    r"\b([A-Za-z_]\w*)\s*(?:\[[^\]\n]{0,80}\]\s*)?=\s*(?:std\s*::\s*)?\w{0,40}[mM][aA][xX]\w*\s*[<(](?!\s*\))"
    r"|\bif\s*\([^;{}\n]{0,160}[<>]=?\s*(?:\w+\s*\[\s*)?([A-Za-z_]\w*)\s*\]?\s*\)\s*\{?\s*\2\s*=(?!=)"
    r"|\b([A-Za-z_]\w*)\s*=[^;?=\n]{0,120}[<>][^;?\n]{0,120}\?[^;\n]{0,120}\b\3\b"
)
_EXP = re.compile(r"\b\w*exp[fl2]?\s*\(")
#: An initialiser of a pointer that adds an offset: `= p + n`, `= &p[n]`.
_WITHIN = re.compile(r"=\s*(?:&\s*\w+\s*\[\s*(?!0?\s*\])|[^=;]*\)?\s*\+)")
#: Number of lines, from the first line of a lambda on, that are searched for the lambda's `return`.
_LAMBDA_LINES = 8
_CHANGED = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\[[^\[\]]{0,80}\]\s*){0,3}(?:[-+*/%]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
#: A loop's reduction clause (groups: operator, variables), and a template for the pattern of an update of variable {0}.
_REDUCTION = re.compile(r"\breduction\s*\(\s*([-+*]|max|min)\s*:([^()]*)\)")
_UPDATE = r"(?<![\w.>]){0}\s*(?:\[[^]]*\]\s*)?(?:([-+*])=|=\s*(?:std::)?f?(max|min)f?\([^;]*\b{0}\b|(=)(?!=))"
#: An unsigned type, and a declaration of another name for such a type: `using sz = std::size_t;`.
_UNSIGNED = r"(?:unsigned\b[\w ]*|(?:std::)?(?:size_t|uint\d+_t))"
_UNSIGNED_NAME = rf"\b(?:using|typedef\s+{_UNSIGNED})\s+(\w+)\s*(?:=\s*{_UNSIGNED}\s*)?;"
#: The parameters of a lambda expression.
_LAMBDA = re.compile(r"\[[^][]{0,80}\]\s*\(([^()]{0,200})\)\s*(?:->[^{}]{0,80})?\{")
_CEILING = re.compile(r"[-+]\s*1\b|[cC][eE][iI][lL]|[dD]iv\s*\(|\?|%")
_INT = re.compile(r"\b(?:int|long|short|size_t|unsigned|u?int\d+_t)\s*&?\s*(\w+)")
#: A whole number divided by a name: `1 / N`, `1 / (int) N`.
_LITERAL_OVER = re.compile(r"(?<![\w.])\d+\s*/\s*(?:(\(\s*int\s*\))\s*)?([A-Za-z_]\w*)\b(?!\s*[.(\[])")
_CLIPPED = re.compile(r"\bmin\b|\?")
#: An initialiser by which a variable shares or copies the memory of another: a tensor's data, a pointer, a reference.
#: If the initialiser reads a single element, group 2 is the element's bracket.
_TAKEN_OVER = re.compile(
    r"(?:[\w:]*[Ff]ormat\w*\s*\(|&\s*)?([A-Za-z_]\w*)\b(?:\s*\.\s*(?:data\w*|begin|\w*accessor\w*)\b|\s*\+|\s*\)?\s*$|(\s*\[))"
)


@dataclass(frozen=True)
class Place:
    """A line of the source: its number, counted from 1, and its text."""

    line: int
    text: str


@dataclass(frozen=True)
class Body:
    """A function's definition in a source file, with searches for lines in it.

    `first` and `last` are the numbers of its first and last line, `opened` is the number of the line with the opening
    brace. `rows` are all lines of the file, `code` the same lines without comments and literals.
    """

    name: str
    first: int
    opened: int
    last: int
    parameters: tuple[str, ...]
    rows: tuple[str, ...]
    code: tuple[str, ...]
    text: str = ""
    """The function's body without comments and literals. Unlike in `code`, long lines are not cut."""
    files: tuple[tuple[int, str], ...] = ()
    """If `rows` joins several files: (number of its first line, name) of each file."""

    def where(self, line: int, file_name: str) -> str:
        """Return "FILE:LINE" for a line of `rows`. `file_name` is the file's name if there is only one."""
        first, name = max((each for each in self.files if each[0] <= line), default=(1, file_name))
        return f"{name}:{line - first + 1}"

    def by_statements(self) -> Body:
        """Return the same function with one statement on each line; a long statement takes several lines.

        Line numbers in the returned text are not those of the file.
        """
        text = re.sub(r"[;{}]", "\\g<0>\n", self.text)
        code = ("{", *re.sub(rf"[^\n]{{{LONGEST_LINE - 100}}}\w{{0,100}}", "\\g<0>\n", text).split("\n"))
        return Body(self.name, 1, 1, len(code), self.parameters, code, code)

    def find(self, pattern: str) -> list[Place]:
        """Return the function's lines in which the pattern occurs."""
        wanted = re.compile(pattern)
        return [self.place(n) for n in self.lines() if wanted.search(self.code[n - 1])]

    @cached_property
    def _helpers(self) -> dict[str, tuple[str, range]]:
        """Text and lines of each function of the file that this function calls, directly or not, by name."""
        code = "\n".join(self.code)
        known = {each.name: each for each in reversed(definitions(code)) if each.name != self.name}
        found, waiting = dict[str, tuple[str, range]](), [self.all_code()]
        while waiting:
            for name in set(_WORD.findall(waiting.pop())) & known.keys() - found.keys():
                each = known[name]
                text, first = code[each.body : each.end], code.count("\n", 0, each.body) + 1
                found[name] = text, range(first, first + text.count("\n") + 1)
                waiting.append(text)
        return found

    def calls(self, pattern: str) -> list[Place]:
        """Return the lines that call a function whose text has the pattern, directly or through one other function."""
        wanted = re.compile(pattern)
        names = {
            name
            for name, (_, lines) in self._helpers.items()
            if any(wanted.search(self.code[n - 1]) for n in lines)
        }
        names |= {name for name, (text, _) in self._helpers.items() if names & set(_WORD.findall(text))}
        return [self.place(n) for n in self.lines() if self._uses(n, names)]

    def zeroed_in(self, size: str) -> list[Place]:
        """Return the lines that set elements to zero, directly or by a call, in a loop to `size` with steps above 1."""
        stepped = {place.line for place in self.steps()} & {n for n, _, end in self._ends() if end == size}
        lines = {place.line: place for place in (*self.find(_ZEROED.pattern), *self.calls(_ZEROED.pattern))}
        return [lines[n] for n in sorted(lines) if stepped & {loop.line for loop in self.enclosing(n)}]

    def restarts(self, size: str) -> list[Place]:
        """Return the lines that set a sum to 0 when the counter of a loop to `size` is 0."""
        counters = {counter for _, counter, end in self._ends() if end == size}
        return self._where(counters, _RESTART)

    def never_begun(self) -> list[tuple[Place, str]]:
        """Return (line, array) for each array whose elements the function adds to but never sets.

        Arrays that a call may set are left out. So are arrays that the function declares, unless they are views or
        copies made outside of loops.
        """
        found = dict[str, Place]()
        for n in self.lines():
            if (added := _ADDED.search(self.code[n - 1])) and added[2] and len(found) < _MOST_EQUAL:
                found.setdefault(added[1], self.place(n))
        kept = list[tuple[Place, str]]()
        for name, place in found.items():
            made = {n for n, copy, _ in self._copies if copy == name and not self.enclosing(n)}
            rows = [self.code[n - 1] for n in self.lines() if n not in made]
            is_set = (
                rf"\b{name}\b\s*(?:[\[(][^;=]*[\])]\s*)?=(?!=)|\w\s*\([^;(]*\b{name}\b\s*[,).]"
                rf"|\w\s*\(\s*&\s*{name}\b|[>\w]\s+\*?{name}\b"
            )
            kept += [] if any(re.search(is_set, row) for row in rows) else [(place, name)]
        return kept

    def sums(self) -> list[Place]:
        """Return the lines that add to a variable or call, say, accumulate(). Steps of loops do not count."""
        return [self.place(n) for n in self.lines() if _SUM.search(self._without_controls(n))]

    def row_sums(self) -> list[Place]:
        """Return the lines that add single values, not products, to a variable."""
        added = ((n, _ADDED.search(self._read(n))) for n in self.lines())
        return [self.place(n) for n, sum_ in added if sum_ is not None and "*" not in sum_[3]]

    def around_weights(self, size: str) -> list[Place]:
        """Return the loops to `size` around the lines of `row_sums` and around calls of exp()."""
        lines = [*self.row_sums()[:_MOST_EQUAL], *self.find(_EXP.pattern)[:_MOST_EQUAL]]
        around = {loop.line for each in lines for loop in self.enclosing(each.line)}
        return [place for place in self.until(size) if place.line in around]

    def arithmetic_of_one_number(self) -> list[Place]:
        """Return the lines with arithmetic of a function of one float that returns a number; [] for other functions."""
        named = rf"\b(float|double|auto|__m\w+)\s+{self.name}\s*(?:=\s*\[[^]]*\]\s*)?"
        head = rf"{named}\(\s*(?:const\s+)?(?:\1|float|double)\b\s*(?:const\s*)?&?\s*\w+\s*\)"
        is_one = re.search(head, "\n".join(self.code[self.first - 1 : self.opened]))
        return self.find(r"[-+*/=]|\breturn\b") if is_one else []

    def summing(self) -> list[Place]:
        """Return the innermost loop around each line of `row_sums`."""
        around = (self.enclosing(each.line)[-1:] for each in self.row_sums()[:_MOST_EQUAL])
        return list(dict.fromkeys(self.place(loop.line) for loops in around for loop in loops))

    def leaves(self) -> list[Place]:
        """Return the lines with `return` within a loop. Only the first _MOST_EQUAL lines with `return` are examined."""
        return [place for place in self.find(r"\breturn\b")[:_MOST_EQUAL] if self.enclosing(place.line)]

    def updates(self) -> list[Place]:
        """Return the lines that use `*=`, or set a float to a product plus a term.

        Of these lines, only those inside the largest number of loops are returned.
        """
        ints, depths = self._ints(), dict[int, int]()
        for n in self.lines():
            row = self._read(n)
            value, to = _STORED_VALUE.search(row), _VALUE_SET.search(row)
            is_index = (
                _WHOLE.match(row) or re.search(r"\*\s*\w+\s*=", row) or (to is not None and to[1] in ints)
            )
            is_sum = value is not None and _PRODUCT_AND_TERM.search(value[1])
            if len(depths) < _MOST_EQUAL and not is_index and (is_sum or "*=" in row):
                depths[n] = len(self.enclosing(n))
        return [self.place(n) for n, depth in depths.items() if depth == max(depths.values())]

    def _read(self, line: int) -> str:
        """Return a line without the heads of loops, in which `a[i]` and `read(a, i)` are shortened to the name `a`."""
        row = self._without_controls(line)
        for _ in range(4):
            row = _READ.sub(lambda read: read[1] or "", row)
        return row

    def uses(self, pattern: str) -> list[Place]:
        """Return the lines in which the pattern occurs, without lines that copy an argument."""
        _, made = self.made_of(self.parameters)
        return [place for place in self.find(pattern) if place.line not in made]

    def copied_in(self, pattern: str) -> list[str]:
        """Return [copy, array, copy, array, ...]: copies of arrays or pointers to them, made in lines with the pattern.

        If the pattern matches the names of some of these arrays, the others are left out.
        """
        lines = {place.line for place in self.find(pattern)}
        made = [(name, source) for n, name, source in self._copies if n in lines]
        chosen = [pair for pair in made if re.search(pattern, pair[1])] or made
        return [name for pair in chosen for name in pair]

    def reads(self, names: Iterable[str]) -> list[Place]:
        """Return the lines that use one of these variables or a copy of it, without the lines that make a copy."""
        known, made = self.made_of(own := {*names})
        copies, found = [*reversed(self._copies)], list[Place]()
        for n in self.lines():
            while copies and copies[-1][0] == n:  # From here on, the name may stand for another array.
                _, name, source = copies.pop()
                (known.add if source in known or name in own else known.discard)(name)
            found += [self.place(n)] if n not in made and self._uses(n, known) else []
        return found

    def shares(self) -> list[Place]:
        """Return the lines that divide by the number of threads and round down, and those that use the quotient."""
        of = r"omp_get_(?:num|max)_threads|hardware_concurrency", "omp_get_thread_num"
        set_to, code = r"\b(\w+)\s*=(?!=)", self.all_code()
        found = (re.findall(rf"{set_to}[^;]{{0,200}}\b(?:{one})\b", code) for one in of)
        counts, own = ("|".join([one, *names]) for one, names in zip(of, found, strict=True))
        whole = rf"(?![^;]{{0,200}}\b(?:{own})\b)[^-+=;]{{0,200}}/[\s(]*(?:std::thread::)?(?:{counts})\b"
        return self._where(set(re.findall(rf"{set_to}{whole}(?![^;]{{0,200}}\+)", code)), _WORD)

    def mixed_reductions(self) -> list[tuple[Place, str]]:
        """Return (pragma, words) for reductions by a wrong operator. `-` counts as `+`: OpenMP adds for both."""
        found = list[tuple[Place, str]]()
        for n in self.lines()[:-1]:
            for operator, names in _REDUCTION.findall(self.code[n - 1]):
                text = "\n".join(self.code[n : self._ended(n + 1)])
                for name in _WORD.findall(re.sub(r"\[[^]]*\]", "", names)):
                    by = {"".join(one).replace("-", "+") for one in re.findall(_UPDATE.format(name), text)}
                    if len(by) == 1 and not by & {"=", operator.replace("-", "+")}:
                        words = f"but the loop changes {name} by {{0}}: write reduction({{0}} : {name})."
                        found.append((self.place(n), words.format(*by)))
        return found

    def pointers(self, names: Iterable[str]) -> list[Place]:
        """Return the lines that make a pointer with an offset into one of these arrays."""
        _, made = self.made_of(names)
        return [self.place(n) for n in sorted(made) if _WITHIN.search(self.code[n - 1])]

    def stores(self, names: Iterable[str]) -> list[Place]:
        """Return the lines that write to one of these arrays: by `name[i] =`, or by a function named write, copy ..."""
        known, _ = self.made_of(names)
        return self._where(known, _ELEMENT_SET, _HANDED_TO_WRITER, _COPIED_TO, _FILLED)

    def values(self, names: Iterable[str]) -> list[Place]:
        """Return the lines that set one of these variables or its elements. Skip loop counters and parameters."""
        begun = re.findall(r"\bfor\s*\(\s*[\w:]+\s+(\w+)", self.all_code())
        counters = {*begun, *(name for _, name, _ in self._ends())}
        wanted = set(names) - counters - set(self.parameters)
        _, copies = self.made_of(self.parameters)
        return [place for place in self._where(wanted, _VALUE_SET) if place.line not in copies]

    def divisors(self) -> list[Place]:
        """Return the lines that set a variable by which another line divides."""
        return self.values(self._divisors())

    def _divisors(self) -> set[str]:
        found = re.compile(r"[\w\])]\s*/=?\s*(?:\(\s*\w+\s*\)\s*)?([A-Za-z_]\w*)\b(?!\s*\()")
        return {name for place in self.divisions() for name in found.findall(self.code[place.line - 1])}

    def kept_divisors(self) -> list[tuple[Place, str]]:
        """Return (line, sum) for each divisor that an inner loop adds up and that the loop around it does not set.

        Such a sum keeps the values of earlier turns. Loops over tiles are ignored. A sum in an array's element is left
        out if any line sets the array.
        """
        stepped, names, found = {place.line for place in self.steps()}, self._divisors(), []
        for n in self.lines():
            added = _ADDED.search(self._without_controls(n))
            if added is not None and (name := added[1]) in names:
                names -= {name}
                around = [loop.line for loop in self.enclosing(n) if loop.line not in stepped][:-1]
                is_set = (
                    rf"\b{name}\b\s*(?:[\[(][^;=]*[\])]\s*)?=(?!=)(?![^;]*\b{name}\b)|\w\s*\([^;]*\b{name}\b"
                    rf"|[>\w,]\s*[*&]?\b{name}\s*[;,{{(\[]"
                )
                lines = [{loop.line for loop in self.enclosing(each.line)} for each in self.find(is_set)]
                if around and not any(added[2] or around[-1] in loops for loops in lines):
                    found.append((self.place(n), name))
        return found

    def stored(self, names: Iterable[str]) -> list[Place]:
        """Return the lines that set a variable whose value is then stored into one of these arrays.

        If other variables have the same name, lines that set them are left out.
        """
        found = set[Place]()
        for place in self.stores(names):
            row = self.code[place.line - 1]
            last = row.rpartition("=" if re.search(r"\]\s*[-+*/]?=", row) else ",")[2]
            for name in set(re.findall(r"\b[A-Za-z_]\w*\b(?!\s*[(\[])", re.sub(r"\[[^\[\]]*\]", "[", last))):
                declared = re.compile(rf"\b(?:float|double|auto|\w*int\w*)\b[\s&*]*{name}\b")
                at = [n for n in self.lines() if declared.search(self.code[n - 1])]
                begin = max((n for n in at if n <= place.line), default=self.first)
                end = min((n for n in at if n > place.line), default=self.last + 1)
                found |= {each for each in self.values([name]) if begin <= each.line < end}
        return sorted(found, key=lambda each: each.line)

    def summed_from(self, names: Iterable[str]) -> list[Place]:
        """Return the lines that set or change a sum to which values of `names` are added."""
        known, _ = self.made_of(names)
        added = (re.search(r"([A-Za-z_]\w*)\s*\+=(.*)", self.code[n - 1]) for n in self.lines())
        return self.values(sum_[1] for sum_ in added if sum_ and known & set(re.findall(r"\w+", sum_[2])))

    def begun(self, names: Iterable[str]) -> list[Place]:
        """Return the lines by which a sum of values of `names` may include an old value of an array.

        These lines start the sum with an element, or add to an element. If no such line is found, return the lines that
        set the sum's first value.
        """
        known = self._elements_of(self.made_of(names)[0])
        sums, elements, kept = set[str](), set[tuple[int, str]](), self._added_to_itself(known)
        for n in self.lines():
            if (added := _ADDED.search(self.code[n - 1])) and known & set(re.findall(r"\w+", added[3])):
                sums.add(added[1])
                elements |= {(n, added[1])} if added[2] else set()
        # Leave out lines that add a sum in an element to another element: the first element has the complete sum.
        kept |= {n for n, _ in elements}
        scalars = sums - {name for _, name in elements}
        for n in self.lines():
            row, added = self.code[n - 1], _ADDED.search(self.code[n - 1])
            words = re.findall(r"\w+", row)
            to_element = added is not None and added[2] and scalars & set(re.findall(r"\w+", added[3]))
            handed = (words.count(name) > 1 for name in _HANDED_TO_WRITER.findall(row))
            if to_element or (sums & set(words) and any(handed)):
                kept.add(n)
        begins = [place for place in self.values(sums) if "+=" not in self.code[place.line - 1]]
        # Leave out statements that scale a sum, and exp() of a complete sum.
        read = [place for place in begins if _READS_FIRST.search(self.code[place.line - 1])]
        if kept or read:
            return sorted([*read, *map(self.place, kept)], key=lambda place: place.line)
        return begins

    def _elements_of(self, known: set[str]) -> set[str]:
        """Return these arrays and the variables that are set to an element of one: `q = Q[i]`, `q = read(Q, i)`."""
        made = [pair for n in self.lines() for pair in _ASSIGNED.findall(self.code[n - 1])]
        return known | {name for name, value in made if (read := _ELEMENT.match(value)) and read[1] in known}

    def times(self, names: Iterable[str]) -> list[Place]:
        """Return the lines that set a variable, such as a factor, which is used on a line that reads these arrays."""
        lines = self.reads(names)
        known, _ = self.made_of(names)
        used = {word for place in lines for word in _WORD.findall(self.code[place.line - 1])}
        others = {place.line for place in lines} | {n for n, _, _ in self._copies}
        return [place for place in self.values(used - known) if place.line not in others]

    def _added_to_itself(self, known: set[str]) -> set[int]:
        """Return the lines that add a value of `known` to an array's element without `+=`: `a[i] = a[i] + x`.

        If another line reads the old value first (`old = a[i]`), that line is returned, too.
        """
        derived, old, found = set(known), dict[str, tuple[int, set[str]]](), set[int]()
        for n in self.lines():
            row = self.code[n - 1]
            written = {*_ELEMENT_SET.findall(row), *_HANDED_TO_WRITER.findall(row)}
            words = _WORD.findall(row)
            if written and derived & set(words) and "+=" not in row:
                found |= {n} if any(words.count(name) > 1 for name in written) else set()
                for name in set(words) & set(old):
                    if written & old[name][1] and re.search(rf"\b{name}\s*\+|\+\s*{name}\b", row):
                        found |= {n, old[name][0]}
            for name, value in _ASSIGNED.findall(row):
                parts = set(_WORD.findall(value))
                derived |= {name} if parts & known else set()
                old[name] = (n, parts)
        return found

    def cleared_sources(self) -> list[tuple[Place, str, str]]:
        """Return (line, tensor, vector) for tensors that are set to zero after the vector was made as a copy of it."""
        return [
            (place, source, name)
            for n, name, source in self._copies[:64]
            for place in self.find(rf"\b{re.escape(source)}\s*\.\s*(?:zero_|fill_)\s*\(")
            if place.line > n and re.search(r"\bvector\b|ormat", self.code[n - 1])
        ]

    def lost_copies(self) -> list[tuple[Place, str]]:
        """Return (line, array) for each `return` of a tensor although the result is in a copy of the tensor.

        The function copied the tensor into the array, wrote to the array and did not copy it back.
        """
        found = list[tuple[Place, str]]()
        for place in self.find(r"\breturn\s+\w+\s*;"):
            returned = re.findall(r"\breturn\s+(\w+)\s*;", self.code[place.line - 1])
            for n, copy, source in self._copies[:64]:
                is_copied = "ormat" in self.code[n - 1] and source in returned
                handed_back = self.find(
                    rf"\b{re.escape(source)}\b.*\b{copy}\b|\b{copy}\b.*\b{re.escape(source)}\b"
                )
                if is_copied and self.stores([copy]) and not [each for each in handed_back if each.line != n]:
                    found.append((place, copy))
        return found

    def overwritten(self) -> list[tuple[Place, str, str]]:
        """Find `return fill(tensor, array)` where the array was never written and the result is already in the tensor.

        Return (line, tensor, array) for each.
        """
        return [
            (place, tensor, array)
            for place in self.find(r"\breturn\s+\w*[Ff]ill\w*\s*\(")
            for tensor, array in re.findall(
                r"\w*[Ff]ill\w*\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)", self.code[place.line - 1]
            )
            if self.stores([tensor]) and not self.stores([array])
        ]

    def cleared(self, names: Iterable[str]) -> list[Place]:
        """Return the lines that set one of these arrays, or its elements, to zero."""
        known, _ = self.made_of(names)
        zero = re.compile(r"[=,({]\s*0[.0f]*\s*[;,)]")
        some = (n for n in self.lines() if self._uses(n, known) and zero.search(self._without_controls(n)))
        return [
            self.place(n)
            for n in some
            if re.search(r"\b(?:memset|fill\w*|assign|\w*[Ww]rite|\w*[Ss]et)\s*\(", self.code[n - 1])
            or known & set(_ELEMENT_SET.findall(self.code[n - 1]))
        ]

    def piled(self, names: Iterable[str], *, reads: bool) -> list[Place]:
        """Return the lines that add to one of these arrays, or else the first line that passes it on.

        If `reads` is true, the first line that reads it is the last resort.
        """
        known = "|".join(self.made_of(names)[0])
        if not known:
            return []
        adds = rf"\b(?:{known})\b[^;=]*\+=(?!=)|\b\w*[Ww]rite\w*\(\s*(?:{known})\b[^;]*\+[^+]"
        # A fill sets all elements, so that no old value is left.
        passed = (
            r"^(?!.*\b(?:\w+Tensor|\w*[rR]ead\w*|\w*fill\w*|memset)\()(?!.*,\s*0[.0f]*\s*\)).*"
            rf"\b\w+\(\s*&?(?:[^();]*,\s*&?)?(?:{known})\b(?!\.)"
        )
        read = rf"[rR]ead\w*\(\s*(?:{known})\b"
        return self.find(adds) or self.find(passed)[:1] or (self.find(read)[:1] if reads else [])

    def bare(self) -> list[Place]:
        """Return the lines that declare a variable without a value, if its next use does not set it.

        Members of a struct or class are left out.
        """
        text = self.all_code()
        starts = accumulate((len(self.code[n - 1]) + 1 for n in self.lines()), initial=0)
        members = [(m.end(), closed(text, m.end(), "{}")) for m in _TYPE_OPENED.finditer(text)]
        waiting, found = dict[str, int](), set[int]()
        for n, start in zip(self.lines(), starts, strict=False):
            row = self.code[n - 1]
            declared = _BARE.match(row)
            for word in _WORD.finditer(row, declared.end() if declared else 0):
                line = waiting.pop(word[0], None)
                is_array = line and "[" in self.code[line - 1]
                is_set = re.match(r"\s*(?:\[[^\]]*\]\s*)?=(?!=)", row[word.end() :])
                # An array without an index is an argument: the called function may set it.
                if line and not is_set and not (is_array and not row[word.end() :].lstrip().startswith("[")):
                    found.add(line)
            if declared and not any(begin <= start < end for begin, end in members):
                waiting |= dict.fromkeys(_WORD.findall(re.sub(r"\[.*", "", declared[1])), n)
        return [self.place(n) for n in sorted(found)]

    @cached_property
    def _maxima(self) -> tuple[set[str], set[int]]:
        """Names of variables that hold a running maximum, and the numbers of the lines that update one."""
        text, names, lines = self.all_code(), set[str](), set[int]()
        for found in _TAKES_LARGER.finditer(text):
            names.add(found[found.lastindex or 0])
            lines.add(self.lines().start + text.count("\n", 0, found.end()))
        return names, lines

    def maxima_begun(self) -> list[Place]:
        """Return the lines that give a running maximum its first value."""
        names, updates = self._maxima
        return [place for place in self.values(names) if place.line not in updates]

    def maxima_subtracted(self) -> list[Place]:
        """Return the lines that subtract a running maximum."""
        names = self._maxima[0]
        return self.find(rf"-\s*(?:{'|'.join(map(re.escape, sorted(names)))})\b") if names else []

    def maxima_taken(self) -> list[Place]:
        """Return the lines that update a running maximum."""
        return [self.place(n) for n in sorted(self._maxima[1])]

    def grown_exponents(self) -> list[tuple[Place, str]]:
        """Return the lines with exp(new - old) where only `new` is a running maximum, each with the text of the exp."""
        (names, _), found, text = self._maxima, list[tuple[Place, str]](), self.all_code()
        for n in self.lines():
            row = self.code[n - 1]
            for start in _EXP.finditer(row):
                end = closed(row, start.end(), "()")
                pieces = apart(row[start.end() : end - 1], "-", r"[\w\])]\s*$")
                grown = [bool(names & set(_WORD.findall(piece))) for piece in pieces]
                # The second one may be the larger one: `n = max(m, x)` or `n = m > x ? m : x`, then exp(x - n).
                larger = (
                    rf"\b{pieces[-1].strip()}\s*=[^;]*(?:\?|[mM][aA][xX])[^;]*\b{pieces[0].strip()}(?!\w)"
                )
                is_word = all(re.fullmatch(r"\s*\w+\s*", piece) for piece in pieces)
                if grown == [True, False] and not (is_word and re.search(larger, text)):
                    found.append((self.place(n), row[start.start() : end].strip()))
        return found

    def stuck_loops(self) -> list[tuple[Place, str]]:
        """Return (line, reason) for loops that never change what they test, or test `i >= 0` for an unsigned i."""
        found = list[tuple[Place, str]]()
        names = [_UNSIGNED, *re.findall(_UNSIGNED_NAME, "\n".join(self.code))]
        counted = re.compile(rf"\s*(?:{'|'.join(names)})\s+(\w+)\s*=[^;,]*;\s*(\1\s*>=\s*0)\s*;")
        for n in self.lines():
            for control in self._controls(n):
                _, test, step = control.split(";")
                found += self._stuck(n, test, step)
                endless = counted.match(control)
                if endless and not re.search(_LEFT, "\n".join(self.code[n - 1 : self._ended(n)])):
                    found.append((self.place(n), f"{endless[2]} is always true: {endless[1]} is unsigned"))
            if loop := re.search(r"^\s*while\s*\(([^()]*)\)\s*(?!;)", self.code[n - 1]):
                found += self._stuck(n, loop[1], "")
        return found

    def _stuck(self, line: int, test: str, step: str) -> list[tuple[Place, str]]:
        tested = re.match(r"\s*([A-Za-z_]\w*)\s*(?:[<>]=?|!=)[^&|]*$", test)
        names = set(_WORD.findall(test))
        if tested is None or names & _changed(step):
            return []
        rows = [self.code[n - 1] for n in range(line, self._ended(line) + 1)]
        rows[0] = rows[0].partition(f"{step})")[2]
        text = "\n".join(rows)
        if names & _changed(text) or re.search(rf"{_LEFT}|[&(,]\s*{tested[1]}\s*[,)]|>>", text):
            return []
        changed = ", ".join(sorted(_changed(step))) or "no variable"
        return [(self.place(line), f"it tests {tested[1]}, but changes {changed}")]

    def changes(self, loops: Iterable[Place]) -> list[Place]:
        """Return the lines of these `while` loops that change a variable in the loop's own condition."""
        found = set[int]()
        for loop in loops:
            tested = set(_WORD.findall(self.code[loop.line - 1].partition("while")[2]))
            inside = range(loop.line, self._ended(loop.line) + 1)
            found |= {n for n in inside if tested & _changed(self._without_controls(n))}
        return [self.place(n) for n in sorted(found)]

    def _ended(self, line: int) -> int:
        """Return the number of the last line of the loop that begins on line `line`."""
        depth, opened = 0, False
        for n in range(line, self.last + 1):
            for letter in re.findall(r"[(){};]", self.code[n - 1]):
                depth += (letter in "({") - (letter in ")}")
                opened |= letter == "{"
                if depth <= 0 and (letter == "}" or (letter == ";" and not opened)):
                    return n
        return self.last

    def turns_from(self, count: int) -> list[Place]:
        """Return the loops that run, or begin their second turn, only if a size is at least `count`."""
        wanted = (count, count - 1) if count > 2 else ()
        lengths = {name for name, number in named_numbers("\n".join(self.code)).items() if number in wanted}
        steps = "|".join(sorted({*map(str, wanted), *lengths}))
        return self.find(rf"\bfor\s*\(.*\+=\s*(?:{steps})\s*\)") if steps else []

    def own_of_threads(self) -> list[Place]:
        """Return the declarations in a parallel region before its `omp for`: each thread has one for all its turns."""
        regions, shared = (
            self.find(rf"#\s*pragma\s+omp\s+{word}\b") for word in ("parallel(?!.*\\bfor)", "for")
        )
        if not regions or not shared:
            return []
        declared = self.find(r"^\s*[\w:]+(?:<[^;<>]*>)?[\s*&]+\w+\s*[=({;\[]")
        return [place for place in declared if regions[0].line < place.line < shared[0].line]

    def grown_divisors(self) -> list[Place]:
        """Return the lines that divide by a sum while the loop around them still adds to it."""
        divisors, found = self._divisors(), []
        for place in self.divisions()[:MOST_DIVISIONS]:
            for name in sorted(divisors & set(_WORD.findall(self.code[place.line - 1])))[:2]:
                added = self.find(rf"(?<![\w.]){name}\s*\+=")[:MOST_DIVISIONS]
                begun = [at for at in self.values([name]) if at not in added][:MOST_DIVISIONS]
                growing = set(self.enclosing(place.line)) & {
                    head for at in added for head in self.enclosing(at.line)
                }
                if begun and growing - {head for at in begun for head in self.enclosing(at.line)}:
                    found.append(place)
        return found

    def cut(self, name: str) -> list[Place]:
        """Return the lines that divide the size `name` and round down, so that a loop may skip the size's remainder.

        Without such lines, return the loops to the size with a step other than 1: those with a literal step, if any.
        """
        divided = re.compile(rf"\b{re.escape(name)}\s*/")
        ends = [(n, end) for n, _, end in self._ends()]
        for n in self.lines():
            row = self.code[n - 1]
            ends += [(n, value) for _, value in _ASSIGNED.findall(row)] if _WHOLE.match(row) else []
        down = {n for n, end in ends if divided.search(end) and not _CEILING.search(end)}
        if down:
            return [self.place(n) for n in sorted(down)]
        to_size = {n for n, _, end in self._ends() if end == name}
        stepped = [place for place in self.steps() if place.line in to_size]
        return [place for place in stepped if re.search(r"\+=\s*\d", self.code[place.line - 1])] or stepped

    def all_code(self) -> str:
        return "\n".join(self.code[n - 1] for n in self.lines())

    def enclosing(self, line: int) -> list[Place]:
        """Return the heads of the loops around line `line` and of a loop that begins there, the outermost first."""
        groups, pending, depth = list[list[int]](), list[int](), 0
        for n in range(self.lines().start, line + 1):
            row = "" if self.code[n - 1].lstrip().startswith("#") else self.code[n - 1]
            for token in re.findall(r"\b(?:for|while|do)\b|[(){};]", row):
                if token in ("for", "while", "do"):
                    pending.append(n)
                elif token in "()":
                    depth += 1 if token == "(" else -1
                elif token == "{":
                    groups.append(pending)
                    pending = []
                elif n < line and (token == "}" or depth == 0):
                    pending = []
                    if token == "}" and groups:
                        groups.pop()
        return [self.place(n) for n in dict.fromkeys([n for group in groups for n in group] + pending)]

    def divisions(self) -> list[Place]:
        """Return the lines with a division. Divisions of whole numbers, as in `int b = bh / H`, are left out."""
        ints, found = self._ints(), list[Place]()
        for n in self.lines():
            row = self.code[n - 1]
            to_int = _WHOLE.match(row) is not None and not re.search(r"\bauto\b", row)
            has_float = re.search(r"\b(?:float|double)\b", row) is not None
            if any(
                not (by in ints or _NUMBER.match(by)) or has_float or not (to_int or of in ints)
                for of, by in _DIVISION.findall(_ROUNDED_UP.sub("", row))
            ):
                found.append(self.place(n))
        return found

    def _ints(self) -> set[str]:
        """Return the names of integers that the function declares, parameters included."""
        return set(_INT.findall("\n".join(self.code[self.first - 1 : self.last])))

    def whole_divisions(self) -> list[tuple[Place, str]]:
        """Return the lines that divide a whole number by an integer variable: (line, "1 / N"), say."""
        ints = self._ints()
        return [
            (self.place(n), found[0])
            for n in self.lines()
            for found in _LITERAL_OVER.finditer(self.code[n - 1])
            if found[1] or found[2] in ints
        ]

    def whole_sums(self) -> list[Place]:
        """Return the lines that add other values to an integer variable, and the variable's declaration.

        Such sums lose fractions. Calls such as accumulate(..., 0), which compute an integer, are returned, too.
        """
        declared = dict[str, int]()
        for n in self.lines():
            if _WHOLE.match(row := self.code[n - 1]):
                is_auto = re.search(r"\bauto\b", row) is not None
                declared |= {
                    name: n
                    for name, value in _ASSIGNED.findall(row)
                    if not is_auto or _NUMBER.match(value.strip())
                }
            elif (bare := _BARE.match(row)) and not re.match(r"\s*(?:float|double|auto)\b", row):
                declared |= dict.fromkeys(_WORD.findall(bare[1]), n)
        found = set[int]()
        for n in self.lines():
            row = self._without_controls(n)
            added = _ADDED.search(row) or re.search(r"\b(\w+)()\s*=\s*\1\s*\+(.*)", row)
            whole = added is None or set(_WORD.findall(added[3])) <= self._ints() | declared.keys()
            if added is not None and added[1] in declared and not whole:
                found |= {declared[added[1]], n}
        found |= {
            place.line for place in self.find(r"\b(?:accumulate|inner_product|reduce)\s*\([^;]*,\s*0\s*[,)]")
        }
        return [self.place(n) for n in sorted(found)]

    def cut_sums(self) -> list[tuple[Place, str, Place]]:
        """Return (declaration, name, line that adds a variable of type float or double) of sums in whole numbers."""
        lines = self.whole_sums()
        text = self.all_code()
        found = [
            (place, adding, _ADDED.search(self.code[adding.line - 1])) for place, adding in pairwise(lines)
        ]
        return [
            (place, added[1], adding)
            for place, adding, added in found
            if added is not None
            and re.search(rf"\b(?:int|long|unsigned)\s+{added[1]}\b", self.code[place.line - 1])
            and any(re.search(rf"\b(?:float|double)\s+{word}\b", text) for word in _WORD.findall(added[3]))
        ]

    def one_short(self) -> list[Place]:
        """Return the loops that stop before the last index: `j < N - 1`, or `j < last` after `last = N - 1`."""
        last = {
            name
            for n in self.lines()
            if _WHOLE.match(self.code[n - 1])
            for name, _ in re.findall(r"\b(\w+)\s*=(?!=)([^=;]{0,200}-\s*1\b)", self.code[n - 1])
        }
        return [
            self.place(n)
            for n in self.lines()
            for control in self._controls(n)
            if re.search(r";[^;<>]*<(?!=)[^;]*-\s*1\s*;", control)
            or last & set(re.findall(r";[^;<>]*<(?!=)\s*(\w+)\s*;", control))
        ]

    def ends_of_row(self) -> list[Place]:
        """Return the lines that make a loop end at the counter of another loop, as in `j <= i`.

        A loop that also begins at that counter is left out.
        """
        controls = [(n, control) for n in self.lines() for control in self._controls(n)]
        counters = {name for _, control in controls for name in re.findall(r"(\w+)\s*=", control)[:1]}
        made = dict[str, tuple[int, set[str]]]()
        for n in self.lines():
            if _WHOLE.match(self.code[n - 1]):
                made |= {
                    name: (n, _added_names(value)) for name, value in _ASSIGNED.findall(self.code[n - 1])
                }
        found = list[int]()
        for n, control in controls:
            begin, test, _ = control.split(";")
            names = _added_names(re.split(r"[<>]=?", test)[-1]) if re.search(r"[<>]", test) else set()
            other = counters - set(_WORD.findall(begin))
            found += [n] if names & other else []
            found += [made[name][0] for name in names & made.keys() if made[name][1] & other]
        return [self.place(n) for n in dict.fromkeys(found)]

    def same_ends(self) -> list[Place]:
        """Return the loops with different counters that end at the same size."""
        counters = dict[str, set[str]]()
        for _, counter, end in self._ends():
            counters.setdefault(end, set()).add(counter)
        return [self.place(n) for n, _, end in self._ends() if len(counters[end]) > 1]

    def _ends(self) -> list[tuple[int, str, str]]:
        """Return (line, counter, end) of each loop: `i < N` in line 7 gives (7, "i", "N")."""
        ends = list[tuple[int, str, str]]()
        for n in self.lines():
            for control in self._controls(n):
                if found := re.search(r";\s*(\w+)[^;<>]*<=?([^;]*);", control):
                    ends.append((n, found[1], found[2].strip()))
        return ends

    def set_in_other_loops(self, line: int) -> list[tuple[Place, str]]:
        """Return (last line that sets it, variable) for each end of a loop around a line, set only in other loops."""
        around, found = {loop.line for loop in self.enclosing(line)}, list[tuple[Place, str]]()
        for end in dict.fromkeys(end for n, _, end in self._ends() if n in around):
            set_at = (
                self.find(rf"(?<![\w.]){re.escape(end)}\s*=(?!=)") if re.fullmatch(r"[\w.]+", end) else []
            )
            if set_at and all({loop.line for loop in self.enclosing(each.line)} - around for each in set_at):
                found.append((set_at[-1], end))
        return found

    def until(self, name: str, *, mixed: bool = False) -> list[Place]:
        """Return the loops that end at the size `name`.

        A loop is suspicious if another loop with the same counter ends at another size. If suspicious loops are found,
        only these are returned. `mixed`: never return other loops.
        """
        ends = self._ends()
        wanted = re.compile(rf"\b{re.escape(name)}\b")
        hits = [end for end in ends if wanted.search(end[2]) and not _CLIPPED.search(end[2])]
        elsewhere = {counter for _, counter, end in ends if not wanted.search(end)}
        few = [end for end in hits if end[1] in elsewhere]
        return [self.place(n) for n in dict.fromkeys(n for n, _, _ in (few if few or mixed else hits))]

    def indices(self, line: int, *, stores: bool = False) -> list[Place]:
        """Return the lines up to line `line` that compute the indices on this line, in this order:

        1. loops with unusual bounds (see `loops`) whose counter the line or its indices use;
        2. lambdas that return an index, and pointers with an offset into an array;
        3. `if`s on an index, after the last assignment to an index;
        4. assignments of the integers that the line uses, then of integers in these assignments or in loop bounds.

        `stores`: ignore the name of a plain value that the line stores into an element.
        """
        row = _PLAIN_VALUE.sub("", self.code[line - 1]) if stores else self.code[line - 1]
        names, loops = set(_WORD.findall(row)), list[Place]()
        odd, bounds = {place.line for place in self.loops()}, set[str]()
        for n in range(line, self.lines().start - 1, -1):
            for control in self._controls(n):
                counter = re.match(r"\s*(?:[\w:]+\s+)?(\w+)\s*=", control)
                if counter is not None and counter[1] in names | bounds:
                    bounds |= set(_WORD.findall(control))
                    loops += [self.place(n)] if n in odd else []
        offsets = [n for n in self._offsets(names | bounds) if n < line]
        bounds |= {word for n in offsets for word in _WORD.findall(self.code[n - 1])}
        whole, made = list[int](), self._whole(line)
        last = max((n for name in (names | bounds) & made.keys() for n in made[name]), default=line - 1)
        tested = [
            n
            for n in range(last + 1, line)
            if re.search(r"\bif\s*\(", self.code[n - 1]) and self._uses(n, (names | bounds) & made.keys())
        ]
        nearest = names
        while nearest:
            some = {n for name in nearest & made.keys() for n in made.pop(name)} - {*whole}
            whole += sorted(some, reverse=True)
            nearest, bounds = bounds | {word for n in some for word in _WORD.findall(self.code[n - 1])}, set()
            nearest &= made.keys()
        return [*loops, *map(self.place, dict.fromkeys([*offsets, *tested, *whole]))]

    def _whole(self, line: int) -> dict[str, set[int]]:
        """Return {integer: lines that set it} for lines up to line `line`. Loop counters are left out.

        Of several variables with the same name, only the one declared last is examined.
        """
        made = dict[str, set[int]]()
        for n in range(self.lines().start, line + 1):
            row = self.code[n - 1]
            if re.search(r"\bfor\s*\(|=\s*\[", row):
                continue
            declared = _WHOLE.match(row)
            for name in _VALUE_SET.findall(row):
                if declared:
                    made[name] = {n}
                elif name in made:
                    made[name].add(n)
        return made

    def _offsets(self, names: set[str]) -> list[int]:
        """Return the lines at which a lambda of `names` returns a value, or a pointer of `names` gets an offset."""
        found = [n for n, name, _ in self._copies if name in names and _WITHIN.search(self.code[n - 1])]
        for n in self.lines():
            opened = re.search(r"\bauto\s+(\w+)\s*=\s*\[", self.code[n - 1])
            if opened is not None and opened[1] in names:
                rows = range(n, min(n + _LAMBDA_LINES, self.last + 1))
                found += [at for at in rows if re.search(r"\breturn\b", self.code[at - 1])][:1]
        return sorted(found)

    def loops(self) -> list[Place]:
        """Return the loops of unusual form. Usual is `i = 0` or `i = i0`, then `i < N`, then `i++` or `i += T`.

        A loop over whole blocks (`i + 8 <= N`) followed by a loop over the rest (`; i < N; i++`) is usual, too.
        """
        controls = [(n, control) for n in self.lines() for control in self._controls(n)]
        rests = {(rest[1], rest[2]) for _, control in controls if (rest := _REST.match(control))}
        found = list[Place]()
        for n, control in controls:
            blocks = _BLOCKS.search(control) or _REST.match(control)
            if not _PLAIN_LOOP.match(control) and not (blocks and (blocks[1], blocks[2]) in rests):
                found.append(self.place(n))
        return found

    def steps(self) -> list[Place]:
        """Return the loops whose step is not 1."""
        return [
            self.place(n) for n in self.lines() for control in self._controls(n) if _STEPPING.search(control)
        ]

    def made_of(self, names: Iterable[str]) -> tuple[set[str], set[int]]:
        """Return (`names` and the names of copies of them or pointers to them, the lines that declare these)."""
        known, made = set(names), set[int]()
        for _ in range(2):
            for n, name, source in self._copies:
                if source in known:
                    known.add(name)
                    made.add(n)
        return known, made

    @cached_property
    def _copies(self) -> list[tuple[int, str, str]]:
        """(line, new name, old name) of each declaration that copies an array or points to its memory."""
        found = list[tuple[int, str, str]]()
        for n in self.lines():
            row = self.code[n - 1]
            for assigned in (*_ASSIGNED.finditer(row), *_BRACED.finditer(row), *_VECTOR.finditer(row)):
                taken, before = _TAKEN_OVER.match(assigned[2].strip()), row[: assigned.start()]
                if not _DECLARES_NUMBERS.search(before):
                    taken = taken or _POINTS_INTO.match(assigned[2].strip())
                is_element = taken is not None and taken.start(1) == 0 and taken[2] is not None
                if taken is not None and not is_element and _DECLARES.search(before):
                    found.append((n, assigned[1], taken[1]))
        return found

    @cached_property
    def returned(self) -> tuple[str, ...]:
        """Names of the variables in the function's return statements."""
        text = "\n".join(self.code[self.first - 1 : self.last])
        # A lambda expression returns its own values.
        for own in reversed(list(_LAMBDA.finditer(text))):
            text = text[: own.end()] + text[closed(text, own.end(), "{}") :]
        texts = re.findall(r"\breturn\b([^;]{0,400});", text)
        return tuple(
            dict.fromkeys(name for text in texts for name in re.findall(r"\b[A-Za-z_]\w*\b(?!\s*[(:])", text))
        )

    def lines(self) -> range:
        return range(self.opened + (self.opened < self.last), self.last + 1)

    def _where(self, names: set[str], *patterns: re.Pattern[str]) -> list[Place]:
        """Return the lines in which one of the patterns finds one of these names."""
        return [
            self.place(n)
            for n in self.lines()
            if names and any(not names.isdisjoint(each.findall(self.code[n - 1])) for each in patterns)
        ]

    def _uses(self, line: int, names: set[str]) -> bool:
        row = self.code[line - 1]
        own = {word for given in _LAMBDA.findall(row) for word in re.findall(r"(\w+)\s*(?:,|$)", given)}
        return not names.isdisjoint(set(_WORD.findall(row)) - own)

    def place(self, line: int) -> Place:
        return Place(line, harmless(self.rows[line - 1].strip())[:160])

    def _without_controls(self, line: int) -> str:
        row = self.code[line - 1]
        for control in self._controls(line):
            row = row.replace(control, "")
        return row

    def _controls(self, line: int) -> list[str]:
        """Return the text in parentheses of each `for` on this line: "int i = 0; i < N; i++"."""
        row = self.code[line - 1]
        starts = [start.end() for start in re.finditer(r"\bfor\s*\(", row)]
        controls = [row[start : closed(row, start, "()")].removesuffix(")") for start in starts]
        return [control for control in controls if control.count(";") == 2]


def _changed(text: str) -> set[str]:
    """Return the names of variables that a text changes, or whose elements it changes."""
    return {name for found in _CHANGED.findall(text) for name in found if name}


def closed(text: str, at: int, brackets: str, most: int | None = None) -> int:
    """Return the offset after the bracket that closes the bracket before `at`.

    `brackets` is the opening and the closing bracket, such as "()". Returns the end of the searched text, which is all
    text or `most` characters, if the bracket is not closed in it.
    """
    depth, end = 1, len(text) if most is None else min(len(text), at + most)
    for found in re.compile(rf"[{re.escape(brackets)}]").finditer(text, at, end):
        depth += 1 if found[0] == brackets[0] else -1
        if depth == 0:
            return found.end()
    return end


def _added_names(text: str) -> set[str]:
    """Return the names in a text that do not follow a minus sign."""
    return set(re.findall(r"(?<!-)(?<!-\s)\b[A-Za-z_]\w*", text))


def function(source: str, name: str) -> Body | None:
    """Return the definition of the function `name` in a source; None if it is not found or too long."""
    text = source[:LARGEST_SOURCE]
    code = blanked(text)
    found = definition(code, name)
    if (
        found is None
        or found.end - found.body > LARGEST_BODY
        or code.count("\n", found.body, found.end) > MOST_LINES
    ):
        return None
    first, opened, last = (text.count("\n", 0, at) + 1 for at in (found.start, found.body, found.end))
    return Body(
        name,
        first,
        opened,
        last,
        parameter_names(code[found.opened : found.closed]),
        tuple(row[:LONGEST_LINE] for row in text.split("\n")),
        tuple(row[:LONGEST_LINE] for row in code.split("\n")),
        code[found.body : found.end],
    )
