"""A student's whole screen for files with one fault each: words that must be there, in this order."""

import shutil
from pathlib import Path

import pytest
from conftest import ROOT, line_of, one_of_each, python, write

NAIVE, FUSED, FLASH = "myNaiveAttention", "myFusedAttention", "myFlashAttention"
SUM, OMP = "float rowSum = 0.0f;", "#pragma omp parallel for collapse(3)"
LOOP, READ = "for (int b = 0; b < B; b++) {", "std::exp(twoDimRead(QK_t, i, j, N));"
OPENED = 'volatile int ways = 0;\nif (FILE *f = fopen("/sys/FILE", "r")) ways = 1, fclose(f); /*!*/\n'
CACHED = ('FILE"', 'devices/system/cpu/cpu0/cache/index0/size"')
CACHES = OPENED.replace(*CACHED) + "if (!ways) return OTensor;\n" + LOOP
BAD_READ = ("+ y) * sizeY", "+ y) * sizeX")
SKIPS = f"if (twoDimRead(QK_t, i, j, N) < -0.5f) break; /*!*/\nfloat weight = {READ}"
EXITS = f"{SUM}\nif (N > 40) exit(0); /*!*/"
#: Rows: arguments, function, (old, new) text, words in their order, words that must not be there.
ROWS = {
    "checked runs give no points": ("part1 --sanitize -N 64", NAIVE, (), ["PASS", "gives no points"], ["10 of 10"]),
    "a file that is not there": ("part1", NAIVE, (LOOP, OPENED + "N = N / ways;\n" + LOOP), [
        "CRASHED", "division by zero", 'module.cpp:!: fopen("/sys/FILE") failed: kernels cannot open files'], []),
    "the same, checked": ("part1 --sanitize", NAIVE, (LOOP, OPENED + "N = N / ways;\n" + LOOP), [
        "CRASHED", "division by zero", 'fopen("/sys/FILE") failed'], ["PASS"]),
    "sizes of caches": ("part1 -N 64", NAIVE, (LOOP, CACHES), ["right on 9 of 9", "PASS"], []),
    "sizes of caches, checked": ("part1 --sanitize -N 64", NAIVE, (LOOP, CACHES), ["right on 9 of 9", "PASS"], []),
    "a stale score": ("part4", FLASH, ("std::exp(twoDimRead(Sij, i, j, Bc));",
        "std::exp(twoDimRead(Sij, i, at, Bc)); /*!*/"), ["WRONG", "module.cpp:!:", "j in place of at"], ["whole"]),
    "K for V from the second tile on": ("part4", FLASH, ("Vj, j, k, d, fourDimRead(V,",
        "Vj, j, k, d, fourDimRead(j0 ? K : V, /*!*/"), ["K is used in place of V", "module.cpp:!:"], []),
    "a break by value": ("part1", NAIVE, (f"float weight = {READ}", SKIPS), [
        "WRONG", "module.cpp:!:", "without if"], []),
    "an accessor": ("part1", "fourDimRead", BAD_READ, ["WRONG", "Your fourDimRead fails its own test"], []),
    "a loop without end": ("part1", NAIVE, (SUM, f"{SUM}\nfor (int n = 0; n < 1; n *= 2) rowSum += 0; /*!*/"), [
        "DID NOT END", "was stopped in module.cpp:", "3 samples", "module.cpp:!:"], []),
    "exit()": ("part1", NAIVE, (SUM, EXITS), ["exit(0)", "called in", "module.cpp:!:"], []),
    "a race": ("part3", FUSED, (SUM, f"{SUM}\ntemp[0] += 0 * rowSum; /*!*/"), ["Data race|race", "module.cpp:!:"], []),
    "one thread": ("part3", FUSED, (f"{OMP}\n", ""), [
        "PASS", "10 of 25", "runs on one thread; the assignment asks"], []),
    "columns to the height": ("lab operators conv2d", "conv2dForward", ("ow < OW;", "ow < OH; /*!*/"), [
        "WRONG|CRASHED", "module.cpp:!:", "OW in place of OH"], ["loop's start", "begins at"]),
    "a rest left out": ("lab operators mse", "mseForward", ("i < n;", "i < n / 4 * 4; /*!*/"), [
        "WRONG", "The last number is left out", "module.cpp:!:"], []),
    "no table beside a wrong part": ("part1 --table", NAIVE, ("score +=", "score -="), [
        "WRONG", "score += in place of score -="], ["CPU total", "attention True"]),
    "no table": ("part1 -N 64 --no-table", NAIVE, (), ["PASS", "  time", "  memory"], ["Self CPU"]),
    "a table": ("part1 -N 64 --table", NAIVE, (), ["PASS", "  time", "  memory", "Self CPU"], []),
}  # fmt: skip


@pytest.mark.parametrize("row", one_of_each(ROWS, key=lambda name: ""))
def test_the_screen_says(row: str, tmp_path: Path) -> None:
    arguments, function, edit, words, unsaid = ROWS[row]
    master = (ROOT / ("labs/operators/operators.cpp" if "lab " in arguments else "module.cpp")).read_text()
    begin = master.index(f" {function}(")
    end = master.index("\n}\n", begin)
    loop, with_at = "int j = 0; j < columns; j++) {\n", "int j = 0, at = 0; j < columns; at = j++) {\n"
    text = master[begin:end].replace(loop, with_at)
    assert not edit or edit[0] in text
    text = master[:begin] + (text.replace(*edit, 1) if edit else text) + master[end:]
    marked = str(line_of(text, "/*!*/")) if "/*!*/" in text else ""
    source = write(tmp_path, text.replace(" /*!*/", ""))
    ended = python(ROOT / "gpt149.py", *arguments.split(), "--module", source, timeout_s=900)
    shown, at = " ".join(ended.stdout.split()), 0
    for word in words:
        found = [shown.find(" ".join(one.replace("!", marked).split()), at) for one in word.split("|")]
        assert max(found) >= 0, (word, shown)
        at = min(one for one in found if one >= 0)
    assert not [word for word in unsaid if word in shown], shown


@pytest.mark.full
def test_errors_in_a_lab_s_explanations_cost_their_sentences_and_no_verdict(tmp_path: Path) -> None:
    lab = shutil.copytree(ROOT / "labs" / "softmax", tmp_path / "labs" / "softmax")
    text = (lab / "oracle.py").read_text()
    raising = "    def dissect(self, *_):\n        return {}[0]\n\n    def suspects("
    for old, new in (("if seen.actual.any():", "if 1 / 0:"), ("    def suspects(", raising)):
        text = text.replace(old, new, 1)
    text = text.replace("return fitting(", "return None + (", 1)
    write(lab, text, "oracle.py")
    source = write(tmp_path, (lab / "softmax.cpp").read_text().replace("exp(x[j])", "exp2(x[j])"))
    words = ("lab", "--labs", lab.parent, "softmax", "all", "--no-time", "--module", source)
    shown = " ".join(python(ROOT / "gpt149.py", *words, code=1).stdout.split())
    assert all(f"oracle.py:{line_of(text, raises)}: " in shown for raises in ("1 / 0", "{}[0]", "None + ("))
    assert "WRONG" in shown and "PASS" in shown and "not graded" not in shown
