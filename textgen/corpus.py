"""Generates plays of any length from a grammar and a seed, and computes the information content of the text.

All words are the kit's own: nothing is downloaded or quoted. Each choice is drawn with known probabilities, so the
text's information content is known: the sum of -log p over all choices. A model's training loss is compared with it.
The best possible loss may be slightly smaller, because different choices may give the same words.

From line to line, a model has to remember the people on stage, the absent person whom they speak of, and open
questions. It must also learn that high-born people speak verse and low-born people prose.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """A seeded random source. `nats` is the information content of all draws so far: the sum of -log(probability)."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.nats = 0.0

    def pick(self, choices: Sequence[T]) -> T:
        self.nats += math.log(len(choices))
        return choices[self._random.randrange(len(choices))]

    def chance(self, probability: float) -> bool:
        hit = self._random.random() < probability
        self.nats -= math.log(probability if hit else 1.0 - probability)
        return hit

    def sample(self, choices: Sequence[T], count: int) -> list[T]:
        """Return `count` different choices, in the order in which they were drawn."""
        left = list(choices)
        return [left.pop(left.index(self.pick(left))) for _ in range(count)]


@dataclass(frozen=True)
class Person:
    """A person of the play. `name` stands above the person's speeches, and `called` is how others address the person.

    `high`: True for a high-born person, who speaks verse. The others speak prose.
    """

    name: str
    called: str
    they: str
    their: str
    them: str
    high: bool


COMPANY = (
    Person("DUCHESS", "your grace", "she", "her", "her", True),
    Person("PRINCE", "sweet prince", "he", "his", "him", True),
    Person("ADMIRAL", "brave admiral", "he", "his", "him", True),
    Person("ABBESS", "holy mother", "she", "her", "her", True),
    Person("SPECTRE", "pale shadow", "he", "his", "him", True),
    Person("BAKER", "good baker", "he", "his", "him", False),
    Person("FERRYMAN", "old ferryman", "he", "his", "him", False),
    Person("NURSE", "kind nurse", "she", "her", "her", False),
    Person("TINKER", "honest tinker", "she", "her", "her", False),
    Person("JESTER", "dear fool", "he", "his", "him", False),
)

#: The grammar: alternatives for each symbol, all equally likely. A symbol in braces is replaced by one of its
#: alternatives; `{a thing}` also adds the article. A symbol that is in the scene's `facts` is replaced by the fact.
RULES: Mapping[str, tuple[str, ...]] = {
    "thing": ("lantern", "letter", "crown", "mirror", "ladder", "candle", "kettle", "needle", "anchor", "ledger",
              "feather", "hammer", "bell", "window", "harp", "dagger", "spindle", "oar"),
    "things": ("keys", "rows", "stones", "threads", "ravens", "apples", "shadows", "numbers", "barrels", "stars",
               "ribbons", "drums", "tides", "roses"),
    "quality": ("silent", "golden", "broken", "bitter", "gentle", "crooked", "weary", "ancient", "hollow", "patient",
                "nameless", "open", "empty", "stubborn", "narrow", "bright"),
    "notion": ("mercy", "sorrow", "fortune", "honour", "silence", "wonder", "memory", "reason", "envy", "hunger"),
    "place": ("orchard", "harbour", "chapel", "tower", "cellar", "kitchen", "garden", "market", "library", "mill"),
    "hour": ("dawn", "noon", "evening", "midnight", "supper", "winter"),
    "does": ("keeps", "counts", "forgets", "carries", "follows", "breaks", "mends", "answers", "borrows", "hides"),
    "do": ("keep", "count", "forget", "carry", "follow", "break", "mend", "answer", "borrow", "hide"),
    "did": ("kept", "counted", "forgot", "carried", "followed", "broke", "mended", "answered", "borrowed", "hid"),
    "one": ("the {thing}", "the {quality} {thing}", "{a quality} {thing}", "the {thing} of {notion}",
            "my {quality} {thing}", "the {matter}"),
    "many": ("the {quality} {things}", "a hundred {things}", "all the {things}"),
    "any": ("{one}", "{many}"),
    "mood": ("aside", "weeping", "laughing", "kneeling", "whispering", "drawing a sword"),
    # Lines of the high-born.
    "verse": (
        "{one} {does} {any},", "no {thing} {does} {any} for ever,",
        "where {notion} is {quality}, {notion} is {quality},",
        "O {quality} {matter}, {do} {any},", "there is no {notion} in {one},", "we {do} {any}, and call it {notion},",
        "if {notion} were {a thing}, I would {do} it,", "{many} {do} the {matter},",
        "so {quality} is the {thing}, so {quality} the {thing},", "the {absent} {did} {any} before {hour},",
    ),
    # Sentences of the low-born.
    "prose": (
        "I {did} {any} in the {place}.", "I saw the {absent} beside {one}.", "they say the {absent} will {do} {any}.",
        "give me {one}, and I will {do} {any}.", "{their} {notion} is {a quality} {thing}.",
        "the {matter} is worth a hundred {things}.", "whoever {does} the {matter} {does} {any}.",
        "my mother {did} {any} every {hour}.", "{they} {did} the {matter}, and {they} wept.",
        "no {notion} without {a thing}, as we say in the {place}.",
    ),
    "ask who": ("who {did} {any}?", "who {did} the {matter}?"),
    "ask where": ("where is {one}?", "where is the {matter} now?"),
    "ask why": ("why did the {absent} {do} {any}?", "why does the {absent} weep?"),
    "ask whether": ("will {they} {do} {any}?", "have you seen the {absent} in the {place}?"),
    "ask when": ("when will the {absent} {do} {one}?", "when did you see {them}?"),
    "answer who": ("the {absent}, {asker}, and no other.", "no one, {asker}, but the {absent}."),
    "answer where": ("in the {place}, {asker}, behind {one}.", "the {absent} has it, {asker}, in the {place}."),
    "answer why": ("because {they} {did} {any}, {asker}.", "for {notion}, {asker}, and for the {matter}."),
    "answer whether": ("yes, {asker}, and {one} with {them}.", "no, {asker}, {they} will not {do} {one}."),
    "answer when": ("before {hour}, {asker}, or never.", "at {hour}, {asker}, when {many} {do} {one}."),
    "rhyming": ("the {thing} of {notion} and the {rhyme}", "I {do} the {quality} {thing} and the {rhyme}",
                "let {things} be {quality}, and mind the {rhyme}",
                "so {quality} is {notion}, so {quality} the {rhyme}"),
    "shown": (" with the {matter}", " looking for the {matter}"),
    "omen": ("Thunder.", "A bell.", "A {thing} falls.", "Music far away."),
    "end": ("Exeunt.", "Exeunt with the {matter}."),
}  # fmt: skip

QUESTIONS = ("who", "where", "why", "whether", "when")
RHYMES = (
    ("night", "light", "knight", "flight"), ("stone", "throne", "bone", "drone"), ("sea", "key", "tree", "bee"),
    ("rain", "chain", "grain", "train"), ("door", "floor", "shore", "oar"), ("day", "clay", "bay", "hay"),
)  # fmt: skip
TITLES = ("THE TRAGEDY OF THE", "THE COMEDY OF THE", "THE HISTORY OF THE")
ACTS, SCENES = 5, 3
SLOT = re.compile(r"\{(a )?([^}]+)\}")


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


class Playwright:
    """Writes the scenes of plays one after the other, all with the same random source."""

    def __init__(self, seed: int) -> None:
        self.dice = Dice(seed)
        self.facts: dict[str, str] = {}
        self.act, self.scene = 1, 0

    def expand(self, symbol: str, **facts: str) -> str:
        """Return one of the symbol's alternatives, drawn at random, with all symbols in it replaced.

        `facts` has the replacements of some symbols, in addition to the scene's facts.
        """
        known = {**self.facts, **facts}

        def fill(slot: re.Match[str]) -> str:
            article, name = slot.groups()
            text = known[name] if name in known else self.expand(name, **facts)
            return ("an " if text[0] in "aeiou" else "a ") + text if article else text

        return SLOT.sub(fill, self.dice.pick(RULES[symbol]))

    def next_scene(self) -> str:
        """Return a whole scene, from its heading to its exit. A play's first scene begins with the play's title."""
        dice, front = self.dice, ""
        self.scene += 1
        if self.scene > SCENES:
            self.scene, self.act = 1, self.act % ACTS + 1
        if (self.act, self.scene) == (1, 1):
            title = f"{dice.pick(TITLES)} {self.expand('quality')} {self.expand('thing')}".upper()
            front = f"{title}\n\n"
        people = dice.sample(COMPANY, 4)
        on_stage, absent = people[: dice.pick((2, 3))], people[3]
        self.facts = {
            "absent": absent.name.lower(), "they": absent.they, "their": absent.their, "them": absent.them,
            "matter": dice.pick(RULES["thing"]),
        }  # fmt: skip
        heading = f"ACT {self.act}, SCENE {self.scene}. {self.expand('place').capitalize()}, {self.expand('hour')}.\n\n"
        names = [person.name for person in on_stage]
        shown = self.expand("shown") if dice.chance(0.7) else ""
        entrance = f"[Enter {', '.join(names[:-1])} and {names[-1]}{shown}.]\n\n"
        return front + heading + entrance + self.dialogue(on_stage) + f"[{self.expand('end')}]\n\n\n"

    def dialogue(self, on_stage: Sequence[Person]) -> str:
        dice, speeches = self.dice, []
        speaker = dice.pick(on_stage)
        for _ in range(dice.pick((4, 5, 6, 7))):
            others = [person for person in on_stage if person is not speaker]
            if dice.chance(0.5):
                other, kind = dice.pick(others), dice.pick(QUESTIONS)
                question = f"{other.called}, {self.expand('ask ' + kind)}"
                speeches.append(self.speech(speaker, last=question))
                speeches.append(self.speech(other, first=self.expand("answer " + kind, asker=speaker.called)))
                speaker = dice.pick([person for person in on_stage if person is not other])
            else:
                speeches.append(self.speech(speaker))
                speaker = dice.pick(others)
            if dice.chance(0.08):
                speeches.append(f"[{self.expand('omen')}]\n\n")
        if dice.chance(0.3):
            speeches.append(self.song(speaker))
        return "".join(speeches)

    def speech(self, who: Person, first: str = "", last: str = "") -> str:
        """Return a person's name and speech: the answer `first`, verse or prose, and the question `last`.

        `first` and `last` may be "".
        """
        count = self.dice.pick((0, 1, 2)) if first or last else self.dice.pick((1, 2, 3))
        mood = f" [{self.expand('mood')}]" if self.dice.chance(0.12) else ""
        said = [self.expand("verse" if who.high else "prose") for _ in range(count)]
        if said and who.high and not last:
            said[-1] = said[-1][:-1] + "."  # lines of verse end in a comma, but a speech ends in a full stop
        lines = [sentence(line) for line in (first, *said, last) if line]
        return f"{who.name}{mood}:\n" + ("\n" if who.high else " ").join(lines) + "\n\n"

    def song(self, who: Person) -> str:
        """Return a person's name and song: four lines in two rhyming pairs."""
        lines = []
        for family in self.dice.sample(RHYMES, 2):
            first, second = self.dice.sample(family, 2)
            lines += [self.expand("rhyming", rhyme=first) + ",", self.expand("rhyming", rhyme=second) + "."]
        return f"{who.name} [singing]:\n" + "\n".join(map(sentence, lines)) + "\n\n"


@dataclass(frozen=True)
class Corpus:
    """A text and its information content in nats, None for a text that the kit did not generate."""

    text: str
    nats: float | None

    @property
    def nats_per_char(self) -> float | None:
        return None if self.nats is None else self.nats / len(self.text)


def write(chars: int, seed: int) -> Corpus:
    """Return whole scenes with at least `chars` characters in total. A seed gives the same text on any machine."""
    playwright, scenes, length = Playwright(seed), [], 0
    while length < chars:
        scenes.append(playwright.next_scene())
        length += len(scenes[-1])
    return Corpus("".join(scenes), playwright.dice.nats)
