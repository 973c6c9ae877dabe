"""Addresses of encoders, and those that name none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.text_encoders import ADDRESSES

from evergram.errors import DataError, ServiceError
from evergram.texts import addresses
from evergram.texts.addresses import TRUSTED_ONLY, open_text_encoder, open_with_prompts
from evergram.texts.text_encoder import Prompts, TextEncoder


def test_an_encoder_has_the_address_that_it_was_opened_at() -> None:
    for address in ADDRESSES:
        assert open_text_encoder(address).address == address
    assert open_text_encoder("openai:https://host/v1#m").address == "openai:https://host/v1#m"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("minilm", "is no address of an encoder"),
        ("gensim:x", "KIND is sentence-transformers, model2vec"),
        ("wordlama:", r"did you mean .wordllama.\?"),
        ("python:", "names no encoder after the colon"),
        ("python:evergram.texts", "write python:package.module:function"),
        ("python:evergram.texts.canaries:none", "cannot be imported"),
        ("python:no_such_module:f", "cannot be imported"),
        ("python:tests.support.text_encoders:NO_FUNCTION", "is no function; it is a int"),
    ],
)
def test_what_names_no_encoder_is_refused(address: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        open_text_encoder(address)


@pytest.mark.parametrize(
    ("address", "module"),
    [
        ("sentence-transformers:x", "sentence_transformers"),
        ("model2vec:x", "model2vec"),
        ("wordllama:", "wordllama"),
        ("openai:https://host/v1#m", "httpx"),
    ],
)
def test_a_missing_package_is_named(
    address: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ServiceError, match="pip install"):
        open_text_encoder(address)


def test_what_runs_code_or_sends_texts_away_must_be_named_by_hand(tmp_path: Path) -> None:
    assert set(TRUSTED_ONLY) == {"python", "openai"}


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
@pytest.mark.parametrize(
    ("address", "module"),
    [
        ("sentence-transformers:x", "sentence_transformers"),
        ("model2vec:x", "model2vec"),
        ("wordllama:", "wordllama"),
    ],
)
def test_a_package_that_fails_on_import_is_named(
    address: str, module: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two packages do not fit each other."""
    (tmp_path / f"{module}.py").write_text(f"raise {error}('no name x in transformers')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ServiceError, match=f"fails: {error}: no name x in transformers; install"):
        open_text_encoder(address)


def test_one_prompt_leaves_the_models_own_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(address: str) -> TextEncoder:
        return open_text_encoder(address, Prompts("query: ", "passage: "))

    monkeypatch.setattr(addresses, "open_text_encoder", opened)
    cases = {
        (None, None): ("query: ", "passage: "),
        ("ask ", None): ("ask ", "passage: "),
        (None, "tell "): ("query: ", "tell "),
        ("", "tell "): ("", "tell "),
    }
    for asked, prompts in cases.items():
        assert open_with_prompts(ADDRESSES[0], *asked).prompts == Prompts(*prompts)
