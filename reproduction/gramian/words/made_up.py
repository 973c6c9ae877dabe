"""A made-up text in which words have a topic and a role, and the judgements that follow."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, permutations

from reproduction.gramian.words.judgements import KINDS, PAIRS, Judgements, Pair, Question

TOPICS, ROLES = 8, 4
PARAGRAPHS, WORDS = 3000, 8
# Names of topics and roles, of letters alone.
LETTERS = "abcdefgh"
# How alike two words are: of one topic, of one role, of neither.
SAME_TOPIC, SAME_ROLE, NEITHER = 9.0, 5.0, 1.0


def word(topic: int, role: int) -> str:
    """Return the word of a topic in a role, such as a country's capital."""
    return f"w{LETTERS[topic]}{LETTERS[role]}"


def made_up_paragraphs(seed: int = 0) -> Iterator[list[str]]:
    """Yield paragraphs about one word each, among context words of its topic and of its role."""
    draw = random.Random(seed)
    for _ in range(PARAGRAPHS):
        topic, role = draw.randrange(TOPICS), draw.randrange(ROLES)
        around = [f"t{LETTERS[topic]}{draw.choice(LETTERS)}" for _ in range(WORDS // 2)]
        around += [f"r{LETTERS[role]}{draw.choice(LETTERS)}" for _ in range(WORDS // 2)]
        draw.shuffle(around)
        yield [*around[: WORDS // 2], word(topic, role), *around[WORDS // 2 :]]


def made_up_judgements() -> Judgements:
    """Return all pairs of words as each set, and analogies between topics as both kinds."""
    grid = [(topic, role) for topic in range(TOPICS) for role in range(ROLES)]
    pairs: list[Pair] = []
    for one, two in combinations(grid, 2):
        alike = NEITHER
        if one[0] == two[0]:
            alike = SAME_TOPIC
        elif one[1] == two[1]:
            alike = SAME_ROLE
        pairs.append((word(*one), word(*two), alike))
    questions: dict[str, tuple[Question, ...]] = {}
    for number, kind in enumerate(KINDS):
        first, second = 2 * number, 2 * number + 1
        questions[kind] = tuple(
            (word(a, first), word(a, second), word(b, first), word(b, second))
            for a, b in permutations(range(TOPICS), 2)
        )
    return Judgements(dict.fromkeys(PAIRS, tuple(pairs)), questions)
