"""How people judge words: pairs that are alike, and analogies."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from evergram.data import existing
from evergram.errors import DataError

# The file of each set of pairs, as docs/data-sets.md fetches them.
PAIRS = {
    "MEN": "EN-MEN-TR-3k.txt",
    "WordSim-353": "EN-WS-353-ALL.txt",
    "SimLex-999": "EN-SIMLEX-999.txt",
}
QUESTIONS = "questions-words.txt"
KINDS = ("semantic", "syntactic")
Pair = tuple[str, str, float]
Question = tuple[str, str, str, str]


@dataclass(frozen=True)
class Judgements:
    """Pairs of words with how alike they are, and questions "a is to b as c is to d".

    Args:
        pairs: by the name of a set, words and a number that is higher for words more alike.
        questions: by kind, a, b, c and the answer d.
    """

    pairs: Mapping[str, tuple[Pair, ...]]
    questions: Mapping[str, tuple[Question, ...]]

    def half(self, number: int) -> Judgements:
        """Return one half of all judgements: 0 to choose settings by, 1 to report.

        A hash of its words decides where a judgement belongs, whatever the order of the files.
        """
        return Judgements(
            {k: tuple(p for p in v if _half(p[:2]) == number) for k, v in self.pairs.items()},
            {k: tuple(q for q in v if _half(q) == number) for k, v in self.questions.items()},
        )


def read_judgements(folder: Path) -> Judgements:
    """Return MEN, WordSim-353, SimLex-999 and Google's analogies, in lower case.

    Sections of analogies whose names begin with "gram" are syntactic, the others semantic.

    Raises: DataError: a file is missing, or a row is not of its form; the row is named.
    """
    pairs = {name: _pairs(existing(folder / file)) for name, file in PAIRS.items()}
    return Judgements(pairs, _questions(existing(folder / QUESTIONS)))


def _half(words: tuple[str, ...]) -> int:
    return zlib.crc32(" ".join(words).encode()) & 1


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the cells of each row that is not empty."""
    try:
        lines = path.read_text(encoding="utf-8").lower().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}; fetch it again.") from error
    return [(i, cells) for i, line in enumerate(lines, 1) if (cells := line.split())]


def _pairs(path: Path) -> tuple[Pair, ...]:
    pairs = []
    for number, cells in _rows(path):
        try:
            first, second, alike = cells
            pairs.append((first, second, float(alike)))
        except ValueError:
            raise DataError(
                f"{path} row {number} is {' '.join(cells)!r}; a row is two words and a number."
            ) from None
    return tuple(pairs)


def _questions(path: Path) -> dict[str, tuple[Question, ...]]:
    questions: dict[str, list[Question]] = {kind: [] for kind in KINDS}
    kind = ""
    for number, cells in _rows(path):
        if cells[0] == ":" and len(cells) == 2:
            kind = KINDS[cells[1].startswith("gram")]
        elif kind and len(cells) == 4:
            a, b, c, d = cells
            questions[kind].append((a, b, c, d))
        else:
            raise DataError(
                f"{path} row {number} is {' '.join(cells)!r}; a row is four words, or a colon and "
                "the name of the section that follows."
            )
    return {kind: tuple(each) for kind, each in questions.items()}
