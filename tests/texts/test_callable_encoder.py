"""A function of a module in the folder where the program was started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evergram.errors import DataError
from evergram.texts.callable_encoder import CallableEncoder
from evergram.texts.text_encoder import Prompts


def test_a_module_of_this_folder_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lengths_of_texts.py").write_text(
        "def encode(texts):\n    return [[len(text), 1.0] for text in texts]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    encoder = CallableEncoder("lengths_of_texts:encode", Prompts(query="ab"))
    assert encoder.encode(["four"]).tolist() == [[4.0, 1.0]]
    assert encoder.encode(["four"], "query").tolist() == [[6.0, 1.0]]


def test_a_module_that_fails_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_encoder.py").write_text("raise ValueError('no weights')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DataError, match=r"as the module fails: ValueError: no weights; correct it"):
        CallableEncoder("failing_encoder:f")
