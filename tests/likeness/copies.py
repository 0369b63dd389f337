"""Changes with which copiers hide the origin of a text, from careless to thorough."""

import random
import re

_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_SUM = re.compile(r"^(\w+) \+= ([^;]*);$", re.MULTILINE)
_LOOP = re.compile(r"for \((int \w+ = [^;()]*); ([^;]*); (\w+\+\+|\+\+\w+)\) \{")

#: Cannot be renamed: the assignment calls them, or the language has them.
_FIXED = (
    "at torch std exp expf min max fill assign data omp omp_get_thread_num vector Tensor zeros kFloat auto bool break "
    "const else float for if inline int return size_t static void while pragma parallel collapse schedule dynamic "
    "begin end size numel contiguous data_ptr copy include define ifndef endif double long unsigned INFINITY TILE_SIZE "
    "fourDimRead fourDimWrite twoDimRead twoDimWrite formatTensor fillTensor myNaiveAttention "
    "myUnfusedAttentionBlocked myFusedAttention myFlashAttention"
)
_OTHERS = ["acc2", "alpha", "buf", "cell", "cnt", "item", "lane", "leftover", "mid", "pos", "stride", "tmp"]


def renamed(body: str, rng: random.Random) -> str:
    """Replace every local name by another one, the same one throughout."""
    table = {word: word for word in _FIXED.split()}
    fixed = len(table)

    def other(match: re.Match[str]) -> str:
        word = match.group()
        if word not in table:
            table[word] = f"{rng.choice(_OTHERS)}_{len(table) - fixed}"
        return table[word]

    lines = (line if line.startswith(("#", "//")) else _NAME.sub(other, line) for line in body.splitlines())
    return "\n".join(lines)


def recommented(body: str, rng: random.Random) -> str:
    lines = [line for line in body.splitlines() if not line.strip().startswith("//")]
    return "\n".join(f"{line}  // {rng.choice(_OTHERS)}" if rng.random() < 0.2 else line for line in lines)


def reshaped_loops(body: str, rng: random.Random) -> str:
    """Reverse counting loops, and sometimes write `x = x + y` for `x += y`."""

    def other(match: re.Match[str]) -> str:
        start, end, step = match.groups()
        name = step.strip("+")
        return f"for ({start}; {end}; {rng.choice((f'{name}++', f'++{name}', f'{name} += 1'))}) {{"

    def written_out(match: re.Match[str]) -> str:
        return match.group() if rng.random() < 0.5 else f"{match[1]} = {match[1]} + {match[2]};"

    return _SUM.sub(written_out, _LOOP.sub(other, body))


def with_other_loops(body: str, rng: random.Random) -> str:
    """Turn some counting loops without a `for` inside into `while` loops."""
    lines, out, open_loops = body.splitlines(), [], []
    for at, line in enumerate(lines):
        match = _LOOP.fullmatch(line)
        closes = next((k for k in range(at + 1, len(lines)) if lines[k] == "}" or "for" in lines[k]), at)
        if match and lines[closes] == "}" and rng.random() < 0.5:
            out.append(f"{match[1]};\nwhile ({match[2]}) {{")
            open_loops.append(match[3])
        elif open_loops and line == "}":
            out.append(f"{open_loops.pop()};\n}}")
        else:
            out.append(line)
    return "\n".join(out)


def padded(body: str, rng: random.Random) -> str:
    """Insert statements without effect, one after about ten lines."""
    out, useless = [], ("int unused = 0;", "float check = 1.0f; check *= 2;", "if (d < 0) { break; }")
    for line in body.splitlines():
        out.append(line)
        if line.endswith("{") and rng.random() < 0.25:
            out.append(rng.choice(useless))
    return "\n".join(out)


def turned_products(body: str, rng: random.Random) -> str:
    """Sometimes write `a * b` as `b * a` if both are plain calls or elements."""
    factor = r"\w+(?:\([^()]*\)|\[[^\[\]]*\])"

    def turned(match: re.Match[str]) -> str:
        return match.group() if rng.random() < 0.5 else f"{match[2]} * {match[1]}"

    return re.sub(rf"({factor}) \* ({factor})", turned, body)


EFFORTS = {
    "careless": (recommented,),
    "renamed": (recommented, renamed),
    "reworked": (recommented, reshaped_loops, renamed),
    "patient": (recommented, turned_products, padded, with_other_loops, reshaped_loops, renamed),
}


def copied(body: str, effort: str, seed: int) -> str:
    rng = random.Random(seed)
    for change in EFFORTS[effort]:
        body = change(body, rng)
    return body


def reordered(source: str, rng: random.Random) -> str:
    pieces = re.split(r"(?=^torch::Tensor my)", source, flags=re.MULTILINE)
    last, table = pieces[-1].split("PYBIND11_MODULE", 1)
    parts = [*pieces[1:-1], last]
    rng.shuffle(parts)
    return pieces[0] + "".join(parts) + "PYBIND11_MODULE" + table
