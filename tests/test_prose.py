"""The checker of prose finds what has to be read twice, and leaves plain sentences alone."""

import json

from tools import prose

POOR = '''"""Whether it is open."""


def f() -> int:
    """Which of these is no number, whoever asks, and held against the one before it that the caller gave us, so that
    in the end each of them has a place of its own in the list and none is there two times."""
    ~ It tells nobody,
    ~ and was nothing.
    return 1
'''.replace("~", "#")
PLAIN = '"""Reads a file."""\n\nX = 1\n"""Seconds."""\n\n\ndef f() -> int:\n    # A comment.\n    return 1  # told\n'


def test_each_rule_is_found_once_in_poor_prose() -> None:
    found = [(place.rule, place.line) for place in prose.of_python("a.py", POOR)]
    assert sorted(found) == [
        ("held against", 5),
        ("long sentence", 5),
        ("negated noun", 5),
        ("negated noun", 7),
        ("opening", 1),
        ("opening", 5),
        ("vague verb", 7),
        ("whoever", 5),
    ]


def test_plain_prose_is_left_alone() -> None:
    assert list(prose.of_python("tests/a.py", PLAIN)) == []
    assert [place.rule for place in prose.of_python("a.py", PLAIN)] == ["vague verb"]
    page = f"{'x' * 125}\n{'y' * 126}\n| {'z' * 130} |\n"
    assert [place.line for place in prose.of_markdown("a.md", page)] == [2]


def test_the_baseline_has_each_rule() -> None:
    assert set(json.loads(prose.BASELINE.read_text())) == set(prose.RULES)
