"""Every wrong kernel is rejected, with its bug named where promised; every right variant is accepted."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from conftest import refused
from family import Answer, answers, first_of_each_code, groups, judge
from right_variants import RIGHT
from wrong_kernels import WRONG

from grader.assignment.mutations import Mutation, edited
from grader.backends.torch.zygote import Zygote
from grader.core.results import Diagnosis
from grader.explain import clues, diagnose
from grader.explain.comparison import Comparison, Expected, compare
from labs.attention import kernels, oracle

#: Diagnosis codes without clues (kinds of source lines to show, see `grader.explain.clues`). An accessor has only one
#: line. A build with sanitizers finds the line of a crash. A wrong type or shape has no line in a loop.
WITHOUT_LINES = {
    *("extra_write", "missing_factor", "missing_term", "swapped_indices", "wrong_strides", "wrong_value"),
    *("inputs_overwritten", "sigabrt", "sigsegv", "wrong_dtype", "wrong_shape"),
}
#: Explain only the first two wrong outputs of a kernel, to save time: the first inputs distinguish mistakes best.
MOST_TRIED = 2
Group = list[Mutation]
#: FIRST has one kernel for each code. Its groups come first, because the fast tier tests the first groups.
FIRST, SOME_RIGHT = first_of_each_code(WRONG), RIGHT[::10]
QUICK = groups(FIRST)
GROUPS = [*QUICK, *groups([mutation for mutation in WRONG if mutation not in FIRST])]
RIGHT_GROUPS = [SOME_RIGHT, *groups([mutation for mutation in RIGHT if mutation not in SOME_RIGHT])]


def in_tiers(groups: Sequence[Group], quick: int) -> list[ParameterSet]:
    """Return parameters whose ids name a group's kernels. Groups after the first `quick` run only in the full tier."""
    marks = [[pytest.mark.full] * (at >= quick) for at in range(len(groups))]
    names = [",".join(mutation.name.replace(" ", "_") for mutation in group) for group in groups]
    rows = zip(groups, marks, names, strict=True)
    return [pytest.param(group, marks=mark, id=name) for group, mark, name in rows]


# The fast tier leaves out QUICK's last group, which needs a runner with torch: the softmax lab tests the same code.
@pytest.mark.parametrize("group", in_tiers(GROUPS, len(QUICK) - 1))
def test_wrong_kernels_are_rejected_and_explained(group: Group, zygote: Zygote, tmp_path: Path) -> None:
    for mutation, result in judge(group, zygote, tmp_path):
        shown = f"{mutation.name}: {result.diagnosis}"
        assert result.verdict in ("wrong", "crash"), shown
        assert result.diagnosis is not None and result.diagnosis.message, shown
        assert not mutation.codes or result.diagnosis.code in mutation.codes, shown
        assert mutation.says in result.diagnosis.message, shown


@pytest.mark.parametrize("group", in_tiers(GROUPS, 1))
def test_every_mistake_that_fits_all_outputs_is_named(group: Group, zygote: Zygote, tmp_path: Path) -> None:
    """A message names all suspects (possible mistakes) that fit every explained output, or at least three of them."""
    for mutation, answered in answers(group, zygote, tmp_path):
        compared = [(answer, compare(answer.expected, answer.output)) for answer in answered.values()]
        wrong = [(answer, comparison) for answer, comparison in compared if not comparison.ok][:MOST_TRIED]
        one_by_one = [explain(answer, comparison) for answer, comparison in wrong]
        explained = [each for each in one_by_one if isinstance(each, diagnose.Explained)]
        if "race" in mutation.codes or not explained:
            continue
        in_turn: list[Diagnosis] = []
        for answer, comparison in wrong:
            in_turn.append(explain(answer, comparison, in_turn))
        names = [{name for suspect in each.suspects for name in suspect.names} for each in explained]
        fit_all = set.intersection(*names)
        for alone, settled in zip(one_by_one, diagnose.settled(in_turn), strict=True):
            if isinstance(alone, diagnose.Explained):
                words = {s.words for s in alone.suspects if not fit_all.isdisjoint(s.names)}
                assert sum(each in settled.message for each in words) >= min(3, len(words)), mutation.name


def explain(answer: Answer, comparison: Comparison, earlier: Sequence[Diagnosis] = ()) -> Diagnosis:
    asked = (answer.inputs, answer.shape, answer.expected, answer.output, comparison)
    return diagnose.diagnose(oracle.ORACLES["attention"], *asked, earlier=earlier)


@pytest.mark.full
def test_mistakes_with_the_same_outputs_are_named_together(zygote: Zygote, tmp_path: Path) -> None:
    found = [pair for group in GROUPS for pair in answers(group, zygote, tmp_path)]
    kernels = [pair for pair in found if pair[0].codes and "race" not in pair[0].codes]
    pairs = [
        (one, other)
        for k, (one, answered) in enumerate(kernels)
        for other, others in kernels[k + 1 :]
        if one.says != other.says and alike(answered, others)
    ]
    assert len(pairs) >= 5, "the table has at least five pairs"
    paired = {mutation.name for pair in pairs for mutation in pair}
    theirs = [group for group in GROUPS if not paired.isdisjoint(mutation.name for mutation in group)]
    judged = [pair for group in theirs for pair in judge(group, zygote, tmp_path)]
    messages = {one.name: result.diagnosis.message for one, result in judged}
    for one, other in pairs:
        for message in (messages[one.name], messages[other.name]):
            assert one.says in message and other.says in message, (one.name, other.name)


def alike(some: Mapping[str, Answer], others: Mapping[str, Answer]) -> bool:
    """Return True if two kernels' outputs, by case name, agree up to twice the error budget where either is wrong."""
    pairs = [(some[name], others[name]) for name in some.keys() & others.keys()]
    wrong = [pair for pair in pairs if not all(answer.is_right for answer in pair)]
    expected = [Expected(a.output.astype(float), 2 * a.expected.tolerance) for a, _ in wrong]
    return bool(wrong) and all(compare(e, b.output).ok for e, (_, b) in zip(expected, wrong, strict=True))


@pytest.mark.parametrize("group", in_tiers(RIGHT_GROUPS, 1))
def test_right_variants_are_accepted_without_suspicion(group: Group, zygote: Zygote, tmp_path: Path) -> None:
    for mutation, result in judge(group, zygote, tmp_path, profile=True):
        assert result.verdict == "pass", f"{mutation.name}: {result.diagnosis}"
        # Flags belong to the whole file, so one serial kernel flags its whole group.
        serial = any(each.name == "p3 serial" for each in group)
        found = {flag.code for flag in result.flags if flag.level != "note"}
        assert found == ({"one_thread"} if serial else set()), mutation.name


def test_an_edit_that_no_longer_fits_is_an_error(master: str) -> None:
    gone = Mutation("gone", "part1", (("no such text", ""),))
    refused("0 times, not 1", edited, master, gone, kernels, of=ValueError)
    assert all(edited(master, mutation, kernels) != master for mutation in [*WRONG, *RIGHT])


def test_every_cause_but_the_listed_ones_has_lines_to_show() -> None:
    codes = {code for mutation in WRONG for code in mutation.codes}
    assert {code for code in codes if not (oracle.CLUES.get(code) or clues.usual(code))} == WITHOUT_LINES
