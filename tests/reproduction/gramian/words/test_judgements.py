"""Files of judgements, and their halves."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from reproduction.gramian.words.judgements import (
    PAIRS,
    QUESTIONS,
    Judgements,
    read_judgements,
)

from evergram.errors import DataError


def write(folder: Path, **changed: str) -> Path:
    texts = dict.fromkeys(PAIRS.values(), "Tiger\tcat\t7.35\nlove sex 6\n")
    texts[QUESTIONS] = ": capitals\nAthens Greece Oslo Norway\n: gram8-plural\ncat cats dog dogs\n"
    for name, text in {**texts, **changed}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_pairs_and_questions_are_read_in_lower_case(tmp_path: Path) -> None:
    judgements = read_judgements(write(tmp_path))
    assert set(judgements.pairs) == {"MEN", "WordSim-353", "SimLex-999"}
    assert judgements.pairs["MEN"] == (("tiger", "cat", 7.35), ("love", "sex", 6.0))
    assert judgements.questions == {
        "semantic": (("athens", "greece", "oslo", "norway"),),
        "syntactic": (("cat", "cats", "dog", "dogs"),),
    }


def test_halves_share_nothing_and_are_all() -> None:
    words = [f"{a}{b}" for a in "abcdefghij" for b in "klmnopqrst"]
    pairs = tuple((one, two, 1.0) for one, two in pairwise(words))
    questions = tuple(zip(words, words[1:], words[2:], words[3:], strict=False))
    whole = Judgements({"MEN": pairs}, {"semantic": questions})
    one, two = (whole.half(number) for number in (0, 1))
    assert set(one.pairs["MEN"]) | set(two.pairs["MEN"]) == set(pairs)
    assert not set(one.pairs["MEN"]) & set(two.pairs["MEN"])
    assert set(one.questions["semantic"]) ^ set(two.questions["semantic"]) == set(questions)
    assert 30 < len(one.pairs["MEN"]) < 70
    again = Judgements({"MEN": pairs[::-1]}, {"semantic": questions}).half(0)
    assert set(again.pairs["MEN"]) == set(one.pairs["MEN"])


@pytest.mark.parametrize("name", [*PAIRS.values(), QUESTIONS])
def test_a_missing_file_is_one_sentence_with_the_command(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    write(folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name}: get people's judgements .*curl") as caught:
        read_judgements(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (PAIRS["MEN"], "a b 1\na b\n", "row 2 is 'a b'; a row is two words and a number"),
        (PAIRS["MEN"], "a b c\n", "row 1 is 'a b c'"),
        (QUESTIONS, ": x\na b c\n", "row 2 is 'a b c'; a row is four words"),
        (QUESTIONS, "a b c d\n", "row 1 is 'a b c d'; .* the section that follows"),
    ],
)
def test_a_row_of_another_form_is_named(name: str, text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        read_judgements(write(tmp_path, **{name: text}))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (write(tmp_path) / QUESTIONS).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        read_judgements(tmp_path)


def test_the_real_files_have_what_their_authors_say(real_data: Path) -> None:
    if not (real_data / "words").is_dir():
        pytest.skip("the judgements are not there; docs/data-sets.md says how to get them")
    judgements = read_judgements(real_data / "words")
    counts = {name: len(pairs) for name, pairs in judgements.pairs.items()}
    assert counts == {"MEN": 3000, "WordSim-353": 353, "SimLex-999": 999}
    # Mikolov and others, 2013: 8,869 semantic and 10,675 syntactic questions.
    assert {k: len(q) for k, q in judgements.questions.items()} == {
        "semantic": 8869,
        "syntactic": 10675,
    }
