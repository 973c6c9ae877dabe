"""Words and paragraphs of running text."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reproduction.gramian.words.text import ARTICLES, paragraphs, running_text, words_of

from evergram.errors import DataError


def slow_words(text: str) -> list[str]:
    """The words of a text, letter by letter."""
    words, word = [], ""
    for letter in text.lower() + " ":
        latin = "a" <= letter <= "z" or ("ß" <= letter <= "ɏ" and letter != "÷")
        if latin:
            word += letter
        elif word:
            words.append(word)
            word = ""
    return words


@given(st.text(alphabet=st.one_of(st.characters(max_codepoint=0x260), st.sampled_from("ab é-'3"))))
def test_words_are_runs_of_latin_letters(text: str) -> None:
    assert words_of(text) == slow_words(text)


def test_words_of_a_sentence() -> None:
    assert words_of("Åland's 26,711 km² (n/a) is A–Z.") == [
        "åland",
        "s",
        "km",
        "n",
        "a",
        "is",
        "a",
        "z",
    ]


ARTICLE = """   #copyright

Åland

2007 Schools Wikipedia Selection. Related subjects: Countries; European
Countries

   Åland is an archipelago
   in the Baltic Sea.

   Retrieved from " http://en.wikipedia.org/wiki/%C3%85land"
   This reference article is mainly selected from the English Wikipedia
"""


def test_the_frame_of_an_article_is_left_out() -> None:
    words = [words_of(part) for part in running_text(ARTICLE)]
    assert words == [["åland"], ["åland", "is", "an", "archipelago", "in", "the", "baltic", "sea"]]


def archive(folder: Path, texts: dict[str, str]) -> None:
    with tarfile.open(folder / ARTICLES, "w:xz") as file:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"plaintext_articles/{name}")
            member.size = len(text.encode())
            file.addfile(member, io.BytesIO(text.encode()))


def test_the_articles_of_an_archive_are_read(tmp_path: Path) -> None:
    archive(tmp_path, {"a.txt": ARTICLE, "b.txt": "One.\n\nTwo.", "c.jpg": "no text"})
    assert [words_of(p)[0] for p in paragraphs(tmp_path)] == ["åland", "åland", "one", "two"]


def test_the_lines_of_files_are_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "2.txt.gz").write_bytes(gzip.compress("drei ä\n".encode()))
    (tmp_path / "3.txt.bz2").write_bytes(bz2.compress(b"four\n"))
    (tmp_path / "4.txt.xz").write_bytes(lzma.compress(b"five\n"))
    (tmp_path / "5.html").write_text("six")
    words = [words_of(line) for line in paragraphs(tmp_path)]
    assert words == [["one"], ["two"], ["drei", "ä"], ["four"], ["five"]]


def test_a_text_that_is_not_there_is_named_with_its_command(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"curl -fL --fail-early -O .*wikispeedia_articles_plaintext"
    ):
        list(paragraphs(tmp_path / "wikispeedia"))
    (tmp_path / "wikispeedia").mkdir()
    with pytest.raises(DataError, match=f"{ARTICLES}: get the links"):
        list(paragraphs(tmp_path / "wikispeedia"))


@pytest.mark.parametrize("name", [ARTICLES, "1.txt.gz", "1.txt.bz2", "1.txt.xz", "1.txt"])
def test_a_damaged_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xff\x00 no archive")
    with pytest.raises(DataError, match=r"cannot be read: .*; fetch it again"):
        list(paragraphs(tmp_path))
