"""Generates submissions of independent authors, by random choices among the many small choices that people make.

Most loops of two authors are similar although neither copied. The last functions hide a copy as people do.
Notation: `⟦a¦b⟧` is a choice between a and b. `Q[i][k]` is an element of a tensor or matrix, which each author reads in
a different way. `for (i < N)` is a loop from 0 in steps of 1, or of the number after `by`.
"""

import random
import re

TILES = dict.fromkeys(("Qi", "Kj", "Vj", "Oi", "PV"), "d")
WIDTHS = {"QK_t": "N", "temp": "N", "Sij": "Bc", "Pij": "Bc", **TILES}
ELEMENT = r"(?P<name>\w+)\[(?P<row>[\w() ]+)\]\[(?P<column>\w+)\]"
NAMES = {"s": "sum score dot acc s", "v": "val value result acc v", "e": "e ex weight expVal p"}
NAMES |= {"total": "total rowSum sumExp denominator", "gi": "gi row globalRow qi"}
NAMES |= {"gj": "gj column globalCol kj", "i0": "i0 ib iBlock ii"}
NAMES |= {"j0": "j0 jb jBlock jj", "k0": "k0 kb kBlock kk"}
INDEX = (
    "⟦((x * sizeX + y) * sizeY + z) * sizeZ + b¦x * sizeX * sizeY * sizeZ + y * sizeY * sizeZ + z * sizeZ + b¦"
    "x * (sizeX * sizeY * sizeZ) + y * (sizeY * sizeZ) + z * sizeZ + b⟧"
)
ACCESSOR = f"⟦return tensor[{INDEX}];¦return tensor[{INDEX}];¦int at = {INDEX}; return tensor[at];⟧"
DOT = """float s = ZERO;
for (k < d) { ⟦s += Q[i][k] * K[j][k];¦s += Q[i][k] * K[j][k];¦s = s + Q[i][k] * K[j][k];¦s += K[j][k] * Q[i][k];¦
    float a = Q[i][k]; float c = K[j][k]; s += a * c;⟧ }
"""
SCORES = f"for (j < N) {{ {DOT} MATRIX[ROW][j] = s; }}"
FUSED_ROW = f"float total = ZERO; for (j < N) {{ {DOT} float e = EXP(s); temp[ROW][j] = e; total += e; }}"
LARGEST = """float top = -INFINITY;
for (j < N) { ⟦if (MATRIX[ROW][j] > top) top = MATRIX[ROW][j];¦top = std::max(top, MATRIX[ROW][j]);⟧ }
"""
SOFTMAX = """⟦float total = ZERO;
for (j < N) {
    float e = EXP(MATRIX[ROW][j] - top); ⟦MATRIX[ROW][j] = e; total += e;¦total += e; MATRIX[ROW][j] = e;⟧
}¦
for (j < N) { MATRIX[ROW][j] = EXP(MATRIX[ROW][j] - top); }
float total = ZERO; for (j < N) { total += MATRIX[ROW][j]; }⟧
"""
DIVISION = "for (j < N) { MATRIX[ROW][j] = MATRIX[ROW][j] / total; }"
BY_COLUMN = "for (k < d) { float v = ZERO; for (j < N) { v += MATRIX[ROW][j] * V[j][k]; } O[i][k] = vSCALE; }"
VALUES = f"""⟦{BY_COLUMN}¦{BY_COLUMN}¦
for (j < N) {{ float w = MATRIX[ROW][j]SCALE; for (k < d) {{ O[i][k] = O[i][k] + w * V[j][k]; }} }}¦
std::vector<float> row(d, ZERO);
for (j < N) {{ float w = MATRIX[ROW][j]SCALE; for (k < d) {{ row[k] += w * V[j][k]; }} }}
for (k < d) {{ O[i][k] = row[k]; }}⟧
"""
PRODUCT = "⟦float s = QK_t[i][j]; s += Q[i][k] * K[j][k]; QK_t[i][j] = s;¦QK_t[i][j] = QK_t[i][j] + Q[i][k] * K[j][k];⟧"
CLEAR = "⟦std::fill(M.begin(), M.end(), 0.0f);¦for (x < SIZE) { M[x] = 0; }¦M.assign(SIZE, 0);⟧"
FLASH = """
for (j0 < N by Bc) {
    int COLUMNS = ⟦MIN(Bc, N - j0)¦MIN(j0 + Bc, N) - j0⟧;
    ⟦for (j < COLUMNS) { int gj = j0 + j; for (k < d) { Kj[j][k] = K[gj][k]; Vj[j][k] = V[gj][k]; } }¦
    for (j < COLUMNS) { int gj = j0 + j; for (k < d) { Vj[j][k] = V[gj][k]; } }
    for (j < COLUMNS) { int gj = j0 + j; for (k < d) { Kj[j][k] = K[gj][k]; } }⟧
    for (i0 < N by Br) {
        int ROWS = ⟦MIN(Br, N - i0)¦MIN(i0 + Br, N) - i0⟧;
        for (i < ROWS) {
            int gi = i0 + i; for (k < d) { Qi[i][k] = Q[gi][k]; Oi[i][k] = O[gi][k]; } Li[i] = ⟦L[gi]¦L[i0 + i]⟧;
        }
        ⟦for (i < ROWS) {
            float sum = ZERO;
            for (j < COLUMNS) {
                float s = ZERO; for (k < d) { s += Qi[i][k] * Kj[j][k]; } float e = EXP(s); Pij[i][j] = e; sum += e;
            }¦
        for (i < ROWS) {
            for (j < COLUMNS) { float s = ZERO; for (k < d) { s += Qi[i][k] * Kj[j][k]; } Sij[i][j] = s; }
        }
        for (i < ROWS) {
            float sum = ZERO;
            for (j < COLUMNS) { ⟦float e = EXP(Sij[i][j]); Pij[i][j] = e; sum += e;¦
                Pij[i][j] = EXP(Sij[i][j]); sum += Pij[i][j];⟧ }⟧
            Lij[i] = sum; ⟦¦} for (i < ROWS) {⟧ Lnew[i] = Li[i] + Lij[i];
        }
        ⟦for (i < ROWS) {
            int gi = i0 + i;
            for (k < d) {
                float v = ZERO; for (j < COLUMNS) { v += Pij[i][j] * Vj[j][k]; }
                O[gi][k] = (Li[i] * Oi[i][k] + v) / Lnew[i];
            }¦
        for (i < ROWS) {
            for (k < d) { float v = ZERO; for (j < COLUMNS) { v += Pij[i][j] * Vj[j][k]; } PV[i][k] = v; }
        }
        for (i < ROWS) {
            int gi = i0 + i;
            for (k < d) { ⟦float o = Li[i] * Oi[i][k] + PV[i][k]; O[gi][k] = o / Lnew[i];¦
                O[gi][k] = (Li[i] * Oi[i][k] + PV[i][k]) / Lnew[i];⟧ }⟧
            L[gi] = Lnew[i];
        }
    }
}
"""
_REGION = re.compile(r" *// BEGIN SOLUTION\n.*?// END SOLUTION\n", re.DOTALL)
_STARTER = re.compile(r"^ *// BEGIN STARTER\n.*?// END STARTER\n", re.DOTALL | re.MULTILINE)


class Author:
    """A person with random habits of writing code, and the parts in that person's style."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.access = self.pick("accessor", "accessor", "index", "pointer", "lambda")
        self.step = self.pick("{0}++", "{0}++", "++{0}")
        self.braces = self.pick(True, True, False)
        zero, exp = self.pick("0.0f", "0", "0.f", "0.0"), self.pick("std::exp", "exp", "expf")
        self.smaller = self.pick(r"std::min(\1, \2)", r"(\1 < \2 ? \1 : \2)", r"std::min<int>(\1, \2)")
        rows, columns = self.pick("rows", "br", "qn"), self.pick("columns", "bc", "kn")
        self.habits = {"ZERO": zero, "EXP": exp, "ROWS": rows, "COLUMNS": columns}

    def pick(self, *choices: object) -> object:
        return self.rng.choice(choices)

    def written(self, text: str) -> str:
        """Return a text in this author's style, with all its choices `⟦a¦b⟧` made."""
        while "⟦" in text:
            text = re.sub(r"⟦([^⟦⟧]*)⟧", lambda choice: self.rng.choice(choice[1].split("¦")), text)
        text = re.sub(r"(\};|[{};]) ?", r"\1\n", " ".join(text.split()))
        text = re.sub(r"MIN\(([^,]*), ([^)]*)\)", str(self.smaller), text)
        for word, habit in self.habits.items():
            text = re.sub(rf"\b{word}\b", str(habit), text)
        text = re.sub(rf"^{ELEMENT} = (?P<value>.*);$", self.stored, text, flags=re.MULTILINE)
        text = re.sub(ELEMENT, self.read, text)
        text = re.sub(r"for \((\w+) < (.*?)(?: from (\w+))?(?: by (\w+))?\) \{", self.loop, text)
        if not self.braces:
            text = re.sub(r" \{\n([^{};\n]*;)\n\}", r"\n\1", text)
        for name, others in NAMES.items():
            text = re.sub(rf"\b{name}\b", str(self.pick(*others.split())), text)
        return text

    def loop(self, match: re.Match[str]) -> str:
        name, end, start, step = match.groups()
        step = f"{name} += {step}" if step else str(self.step).format(name)
        return f"for (int {name} = {start or 0}; {name} < {end}; {step}) {{"

    def read(self, place: re.Match[str]) -> str:
        name, row, column = place["name"], place["row"], place["column"]
        if name in WIDTHS and self.access != "accessor":
            return f"{name}[{row} * {WIDTHS[name]} + {column}]"
        if name in WIDTHS:
            return f"twoDimRead({name}, {row}, {column}, {WIDTHS[name]})"
        return {
            "accessor": f"fourDimRead({name}, b, h, {row}, {column}, H, N, d)",
            "lambda": f"{name}[at(b, h, {row}, {column})]",
            "pointer": f"{name.lower()}[{row} * d + {column}]",
            "index": f"{name}[((b * H + h) * N + {row}) * d + {column}]",
        }[str(self.access)]

    def stored(self, place: re.Match[str]) -> str:
        read = self.read(place)
        if self.access == "accessor":
            return f"{read.removesuffix(')').replace('DimRead', 'DimWrite', 1)}, {place['value']});"
        return f"{read} = {place['value']};"

    def heads(self, body: str) -> str:
        """Return loops over batch and head around a body, with declarations for the author's way of access."""
        if self.access == "pointer":
            offset = self.pick("(b * H + h) * N * d", "b * H * N * d + h * N * d", "N * d * (h + H * b)")
            names = [*self.rng.sample("QKV", 3), "O"]
            body = "".join(f"float *{n.lower()} = {n}.data() + {offset}; " for n in names) + body
        if self.access == "lambda":
            index = self.pick("((b * H + h) * N + i) * d + k", "b * H * N * d + h * N * d + i * d + k")
            body = f"auto at = [&](int b, int h, int i, int k) {{ return {index}; }}; {body}"
        if self.access != "accessor" and self.rng.random() < 0.3:
            return self.written(f"for (bh < B * H) {{ int b = bh / H, h = bh % H; {body} }}")
        return self.written(f"for (b < B) {{ for (h < H) {{ {body} }} }}")

    def rows(self, *pieces: str) -> str:
        return "".join(f"for (i < N) {{ {piece} }} " for piece in pieces)

    def row(self, matrix: str, name: str, fused: bool = False, divided: bool | None = None) -> list[str]:
        """Return three pieces of code, which compute the scores, the softmax and the output of a row of weights.

        `matrix` and `name` are the row's matrix and index. `fused`: True to sum in the loop of the scores. `divided`:
        True to divide the weights by their sum, False to divide O, None for a random choice.
        """
        divided = self.rng.random() < 0.6 if divided is None else divided
        softmax = LARGEST + SOFTMAX if self.rng.random() < 0.25 else SOFTMAX.replace(" - top", "")
        middle = ("" if fused else softmax) + (DIVISION if divided else "")
        values = VALUES.replace("SCALE", "" if divided else " / total")
        pieces = (FUSED_ROW if fused else SCORES, middle, values)
        return [piece.replace("MATRIX", matrix).replace("ROW]", f"{name}]") for piece in pieces]

    def part1(self) -> str:
        scores, softmax, values = self.row("QK_t", "i")
        together, apart = self.rows(scores + softmax + values), self.rows(scores, softmax + values)
        return self.heads(str(self.pick(together, apart, apart)))

    def tiles(self, order: str, body: str) -> str:
        """Return loops over tiles and over their elements, around the body, in the order of indices such as "ijk"."""
        tile, early = self.pick("TILE_SIZE", "T", "16"), self.pick(True, False)
        limits = {name: f"MIN({name}0 + {tile}, {end})" for name, end in zip("ijk", "NNd", strict=True)}
        for name in reversed(order):
            body = f"for ({name} < {f'{name}_end' if early else limits[name]} from {name}0) {{ {body} }} "
        for name in reversed(order):
            end = f"int {name}_end = {limits[name]}; " if early else ""
            body = f"for ({name}0 < {'d' if name == 'k' else 'N'} by {tile}) {{ {end}{body} }} "
        return body

    def part2(self) -> str:
        first = self.tiles(str(self.pick("ijk", "ijk", "ikj", "jik")), PRODUCT)
        _, softmax, _ = self.row("QK_t", "i", divided=True)
        second = self.tiles(str(self.pick("ikj", "ijk", "jik")), "O[i][k] = O[i][k] + QK_t[i][j] * V[j][k];")
        return self.heads(cleared("QK_t", "N * N") + first + self.rows(softmax) + second)

    def part3(self) -> str:
        name = str(self.pick("t", "thread", "own"))
        row = "".join(self.row("temp", name, fused=self.rng.random() < 0.4))
        by_row = self.access in ("accessor", "index")
        collapse = self.pick(*(" collapse(3)| collapse(2)" if by_row else " collapse(2)|").split("|"))
        loops = self.heads(self.rows(f"int {name} = omp_get_thread_num(); {row}"))
        return f"#pragma omp parallel for{collapse}\n{loops}"

    def accessors(self) -> tuple[str, str]:
        read = self.written(ACCESSOR)
        return read, re.sub(r"return (tensor\[.*\]);", r"\1 = val;", read)


def cleared(name: str, size: str) -> str:
    return CLEAR.replace("M", name).replace("SIZE", size)


def bodies(seed: int) -> list[str]:
    """Return the six bodies of one author, in the order of the master's regions."""
    author = Author(seed)
    flash = cleared("L", "N") + FLASH
    return [*author.accessors(), author.part1(), author.part2(), author.part3(), author.heads(flash)]


def submission(master: str, parts: list[str]) -> str:
    rest = iter(parts)
    return _REGION.sub(lambda _: next(rest) + "\n", _STARTER.sub("", master))


_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_LOOP = re.compile(r"for \((int \w+ = [^;()]*); ([^;]*); (\w+\+\+|\+\+\w+)\) \{")

#: Names that cannot be replaced: the assignment calls them, or they belong to the language.
_FIXED = (
    "at torch std exp expf min max fill assign data omp omp_get_thread_num vector Tensor zeros kFloat auto bool break "
    "const else float for if inline int return size_t static void while pragma parallel collapse schedule dynamic "
    "begin end size numel contiguous data_ptr copy include define ifndef endif double long unsigned INFINITY TILE_SIZE "
    "fourDimRead fourDimWrite twoDimRead twoDimWrite formatTensor fillTensor myNaiveAttention "
    "myUnfusedAttentionBlocked myFusedAttention myFlashAttention"
)
_OTHERS = ["acc2", "alpha", "buf", "cell", "cnt", "item", "lane", "leftover", "mid", "pos", "stride", "tmp"]


def renamed(body: str, rng: random.Random) -> str:
    """Return the body with every local name replaced by another name, which is the same at all places."""
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
    """Return the body with increments in other forms, such as `++i`, and sometimes `x = x + y` for `x += y`."""

    def other(match: re.Match[str]) -> str:
        start, end, step = match.groups()
        name = step.strip("+")
        return f"for ({start}; {end}; {rng.choice((f'{name}++', f'++{name}', f'{name} += 1'))}) {{"

    def written_out(match: re.Match[str]) -> str:
        return match.group() if rng.random() < 0.5 else f"{match[1]} = {match[1]} + {match[2]};"

    return re.compile(r"^(\w+) \+= ([^;]*);$", re.MULTILINE).sub(written_out, _LOOP.sub(other, body))


def with_other_loops(body: str, rng: random.Random) -> str:
    """Return the body with some innermost counting loops written as `while` loops."""
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
    """Return the body with added statements that have no effect, after about a quarter of the lines that end in "{"."""
    out, useless = [], ("int unused = 0;", "float check = 1.0f; check *= 2;", "if (d < 0) { break; }")
    for line in body.splitlines():
        out.append(line)
        if line.endswith("{") and rng.random() < 0.25:
            out.append(rng.choice(useless))
    return "\n".join(out)


def turned_products(body: str, rng: random.Random) -> str:
    """Return the body with some products `a * b` written as `b * a`, if a and b are calls or elements of arrays."""
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
