"""Small edits of a student's file that may correct it, the likeliest first.

`candidates` lists edits of the functions that a part runs: another variable of the same type, two arguments swapped, a
bound changed by 1, a `continue` left out. `grader.source.edited_source` compiles them together. KINDS lists functions
that yield one kind of edits each, from the modules `word_edits`, `index_edits`, `term_edits`, `value_edits`,
`statement_edits`, `move_edits` and `loop_edits`. They get a source without comments (`code`), the offsets `begin` and
`end` of a function in it, and its variables (`known`). They yield (rank, edit); the lowest rank is the likeliest edit.
The text is untrusted. Edits, names and functions are limited in number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from grader.source import (
    index_edits,
    loop_edits,
    move_edits,
    statement_edits,
    term_edits,
    value_edits,
    word_edits,
)
from grader.source.cpptext import Definition, blanked, definitions, named_numbers
from grader.source.edited_source import Edit
from grader.source.landmarks import closed
from grader.source.scopes import (
    FOR_HEAD,
    SIZE,
    WORD,
    collapsed,
    declared_names,
    line_of,
    macro_counters,
    row_before,
    statement_end,
)

#: Limits on edits, and on characters and variables of a source.
MOST_EDITS, LARGEST, MOST_KNOWN = 2400, 1 << 17, 1000
#: Limits on the result of `tile_lengths`.
MOST_LENGTHS, LONGEST_TILE = 3, 128
#: The kinds of edits of a function. Edits of the same rank keep this order.
KINDS = (
    word_edits.in_calls,
    word_edits.members,
    word_edits.of_words,
    statement_edits.jumps,
    index_edits.exchanged_indices,
    word_edits.extremes,
    loop_edits.thread_counts,
    term_edits.integer_sums,
    term_edits.template_floats,
    term_edits.powers_of_two,
    loop_edits.unsigned_counters,
    index_edits.byte_counts,
    word_edits.uncleared,
    word_edits.filled,
    index_edits.quotients,
    index_edits.remainders,
    index_edits.terms,
    index_edits.quotients_of_remainders,
    index_edits.masks,
    index_edits.multiples,
    index_edits.sizes,
    index_edits.row_lengths,
    statement_edits.resets,
    statement_edits.cleared,
    statement_edits.made_anew,
    statement_edits.emptied,
    statement_edits.computed_once,
    statement_edits.other_cases,
    statement_edits.missing_breaks,
    statement_edits.missing_calls,
    loop_edits.clipped,
    statement_edits.last_blocks,
    statement_edits.of_statements,
    statement_edits.continued,
    move_edits.moves,
    move_edits.moved_loops,
    statement_edits.references,
    statement_edits.copies,
    statement_edits.copied_early,
    statement_edits.cut_values,
    move_edits.own_loops,
    loop_edits.exchanged_loops,
    loop_edits.exchanged_exps,
    loop_edits.exchanged_names,
    move_edits.kept,
    loop_edits.comparisons,
    loop_edits.conditions,
    loop_edits.whole_rests,
    loop_edits.stray_ends,
    loop_edits.exchanged_parameters,
    loop_edits.repeated_ifs,
    loop_edits.restarted,
    loop_edits.whole_vectors,
    loop_edits.last_tiles,
    loop_edits.tile_ends,
    loop_edits.missing_conditions,
    loop_edits.missing_multiples,
    loop_edits.pointers,
    loop_edits.hidden_counters,
    loop_edits.hidden_numbers,
    term_edits.signs,
    term_edits.scaled_sums,
    term_edits.distributed,
    term_edits.removed_factors,
    term_edits.removed_terms,
    term_edits.divisors,
    index_edits.scaled_indices,
    term_edits.compared_quotients,
    term_edits.stored_exps,
    term_edits.missing_exps,
    term_edits.guarded_exps,
    term_edits.kept_copies,
    value_edits.of_values,
    word_edits.numbers,
    index_edits.halves,
    index_edits.offsets,
    term_edits.single_factors,
)
#: The beginning of a pragma, of a `constexpr` declaration, or of the length of an array. Only the number of
#: `num_threads` in a pragma can be edited.
_FIXED = re.compile(
    r"#(?!.*\bnum_threads\s*\(\s*\d*$)|\bconstexpr\b[^;]*$"
    r"|\b(?:float|double|int)\s+\w+(?:\[[^][]*\])*\[[^][]*$"
)
#: The head of a lambda expression that captures all variables by copy, or lists the captured variables by name.
_CAPTURES = re.compile(r"(?<![\w\])])\[(=[^][]*|[\w\s,]*)\]\s*\([^()]*\)\s*\{")
#: Texts that students copy together with a mistake: the head of a loop, an array's element, a call with a quotient.
_PIECE = re.compile(r"\bfor\s*\((?:[^(){}]|\([^()]*\))*\)|\b\w+\[[^][]*\]|\b\w+\([^()]*/[^()]*\)")
#: A call of a function of the standard library that gets a range, up to one of its arguments.
_RANGE = re.compile(r"\b(?:copy|accumulate|m(?:ax|in)_element|fill|transform)\s*\([^;{}]*$")
#: Brackets and their content, up to three levels.
_INNERMOST = re.compile(r"[(\[](?:[^][()]|[(\[](?:[^][()]|[(\[][^][()]*[)\]])*[)\]])*[)\]]")


def candidates(source: str, names: Sequence[str]) -> list[Edit]:
    """Return up to MOST_EDITS edits of the functions `names` of a C++ source, and of its macros, the likeliest first.

    The first of the functions is the part's own. Returns [] for a source of more than LARGEST characters.
    """
    if len(source) > LARGEST:
        return []
    code = blanked(source)
    functions = definitions(code)
    called = {each.name for each in functions}
    known = [each for each in declared_names(code)[:MOST_KNOWN] if each.name not in called]
    named = [each for each in functions if each.name in names]
    parts = [each for each in named if each.name == names[0] or not _converts(code, each)]
    spans = [(each.start, each.end) for each in parts]
    spans = [span for span in spans if not any(a < span[0] and span[1] <= b for a, b in spans)]
    found = list[tuple[float, Edit]]()
    for begin, end in spans:
        scope = [each for each in known if each.begin < end and each.end > begin]
        for kind in KINDS:
            found += kind(code, begin, end, scope)
    # Drop edits of pragmas and array lengths: most of these need a plain name or a constant.
    found = [one for one in found if not any(_FIXED.search(row_before(code, at)) for at, *_ in one[1].places)]
    found += list(_repeated(code, found))
    used = [each for each in known if any(each.begin < end and each.end > begin for begin, end in spans)]
    found += word_edits.in_macros(code, used)
    # Drop edits of numbers on lines with vector instructions: some of these require constant arguments.
    vectors = {line_of(code, one.start()) for one in re.finditer(r"\b_mm\w*\(|\b__m\d+", code)}
    kept = [each for each in found if each[1].line not in vectors or not each[1].changes_numbers]
    # Drop edits of `i` in `FOR(i, N)`, a use of a loop macro: the macro declares this counter.
    by_macro = {(first, last) for first, last, _ in macro_counters(code)}
    kept = [each for each in kept if not any(place[:2] in by_macro for place in each[1].places)]
    # Inside a lambda expression, drop edits that use a variable which is not captured, or an array captured by copy.
    for one in _CAPTURES.finditer(code):
        last = closed(code, one.end(), "{}")
        arrays, text = ("vector", "objects") if "=" in one[1] else ("",), code[one.start() : last]
        others = {each.name for each in used if each.kind.endswith(arrays)} - set(WORD.findall(text))
        kept = [each for each in kept if not _uses(each[1], others, (one.end(), last))]
    # With `collapse`, OpenMP forbids statements between the heads of the collapsed loops, and counters in these heads.
    for nest in [nest for begin, end in spans for nest in collapsed(code, begin, end) if nest]:
        counters = set(re.findall(r"(\w+)\s*=", " ".join(code[at : code.find(";", at)] for at, _ in nest)))
        first, last = (statement_end(code, head[1]) for head in (nest[-1], nest[0]))
        apart = [*((one[1], two[0]) for one, two in pairwise(nest)), (first, last - 1)]
        kept = [one for one in kept if not any(a <= at <= b for at, *_ in one[1].places for a, b in apart)]
        kept = [one for one in kept if not any(_uses(one[1], counters, head) for head in nest)]
    kept = [each for each in kept if _keeps_values(code, each[1])]
    kept.sort(key=lambda each: each[0])
    return [edit for _, edit in kept[:MOST_EDITS]]


def tile_lengths(source: str) -> list[int]:
    """Return the up to MOST_LENGTHS largest numbers, from 2 to LONGEST_TILE, by which loops of a C++ source step."""
    code = blanked(source)
    numbers = named_numbers(code)
    steps = re.findall(r"\+=\s*(\w+)\s*\)", code)
    lengths = {numbers.get(step, int(step) if re.fullmatch(r"\d{1,9}", step) else 0) for step in steps}
    return sorted((each for each in lengths if 1 < each <= LONGEST_TILE), reverse=True)[:MOST_LENGTHS]


def _keeps_values(code: str, edit: Edit) -> bool:
    """Return False if the brackets around a replaced span change its value when the edit is not chosen.

    With brackets around `k % K` in `q / k % K`, the function would divide by another number in all calls.
    """
    for (begin, at, new), (end, _, _) in pairwise(edit.places):
        if begin == at and end > begin and new.startswith("(@ ?") and new.endswith(" : "):
            inner = "".join(_INNERMOST.sub(" x", code[begin:end]).split())
            operators = set(re.findall(r"(?<=[\w)\]])[-+*/%]", inner))
            before, after = code[:begin].rstrip()[-1:], code[end : end + 20].lstrip()[:1]
            if operators & {*"+-"} and (before in [*"-*/%"] or after in [*"*/%"]):
                return False
            if (operators & {*"/%"} and before in [*"*/%"]) or ("*" in operators and before in [*"/%"]):
                return False
    return True


def _uses(edit: Edit, names: set[str], span: tuple[int, int]) -> bool:
    """Return True if an edit puts one of the names into a span."""
    return any(span[0] <= at < span[1] and names & set(WORD.findall(new)) for at, _, new in edit.places)


def _repeated(code: str, found: Sequence[tuple[float, Edit]]) -> Iterator[tuple[float, Edit]]:
    """Yield edits that change all places with the same text in the same way: a mistake may have been copied."""
    alike = dict[tuple[str, int, str], list[tuple[float, Edit]]]()
    for rank, edit in found:
        begin, end, new = edit.places[0]
        if len(edit.places) == 1 and begin < end:
            # A line may use one wrong size several times, as in `(N + Bc - 1) / Bc`. Leave out heads of loops: if the
            # step of a loop over tiles is changed, this may hide a mistake.
            is_head = FOR_HEAD.search(row_before(code, begin)) is not None
            is_size = SIZE.fullmatch(code, begin, end) and SIZE.fullmatch(new)
            # A range names its array twice: `copy(a.begin(), a.begin() + n, ...)`.
            is_range = code.startswith((".begin()", ".end()"), end) or _RANGE.search(row_before(code, begin))
            if (is_size or is_range) and not is_head:
                alike.setdefault((code[begin:end], edit.line, new), []).append((rank, edit))
            for piece in _PIECE.finditer(code, code.rfind("\n", 0, begin) + 1, code.find("\n", end)):
                if piece.start() <= begin and end <= piece.end():
                    alike.setdefault((piece[0], begin - piece.start(), new), []).append((rank, edit))
                    break
    for each in alike.values():
        lines = list(dict.fromkeys(str(edit.line) for _, edit in each))
        if 1 < len(each) <= word_edits.MOST_ALIKE:
            rank, first = each[0]
            places = tuple(place for _, edit in each for place in edit.places)
            where = f"in lines {' and '.join(lines)}" if len(lines) > 1 else f"{len(each)} times in this line"
            words = f"{first.new} in place of {first.old}, {where}"
            is_size = SIZE.fullmatch(first.old) and SIZE.fullmatch(first.new)
            # An edit of an index in several lines is weak: the array stays consistent, which may hide a mistake.
            is_weak = first.is_weak or (len(lines) > 1 and "[" in code[places[0][0] - 1 : places[0][1] + 1])
            edit = replace(first, places=places, words=words, is_weak=is_weak)
            yield rank + (-0.5 if is_size else 0.6), edit


def _converts(code: str, one: Definition) -> bool:
    """Return True for a function that only converts a tensor to an array or back: it has no loop."""
    is_of_tensor = "Tensor" in code[one.start : one.closed]
    return is_of_tensor and re.search(r"\bfor\b", code[one.body : one.end]) is None
