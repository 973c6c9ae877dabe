"""Encoders are pushed to the Hub and pulled from it: a folder stands in for the Hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.encoders import lineage_with_encoder
from tests.support.hub_folder import HubFolder, refusal
from tests.support.optional import need

from evergram.errors import DataError, IntegrityError, ServiceError
from evergram.retrieval.pretrained.hub import is_repository
from evergram.retrieval.pretrained.pretrained_encoder import PretrainedEncoder

need("huggingface_hub")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubFolder:
    monkeypatch.chdir(tmp_path)
    return HubFolder(tmp_path / "hub").install(monkeypatch)


@pytest.fixture
def encoder(tmp_path: Path) -> PretrainedEncoder:
    return lineage_with_encoder(tmp_path / "films").encoder()


def test_an_encoder_comes_back_as_it_was_pushed(hub: HubFolder, encoder: PretrainedEncoder) -> None:
    commit = encoder.push_to_hub("me/films", license="mit", private=True, token="t")
    pushed = {path.name for path in (hub.root / commit).iterdir()}
    assert {Path(name).suffix for name in pushed} == {".json", ".safetensors", ".md"}
    assert ("create_repo", {"repo_id": "me/films", "private": True, "exist_ok": True}) in hub.calls
    assert hub.calls[0][1]["token"] == "t"
    message = f"{encoder.facts.name}, {encoder.facts.fingerprint}"
    assert ("upload_folder", {"commit_message": message}) in hub.calls
    card = (hub.root / commit / "README.md").read_text()
    assert "\nlicense: mit\n" in card
    assert 'PretrainedEncoder.from_pretrained("me/films")' in card
    again = PretrainedEncoder.from_pretrained("me/films")
    assert (again.facts, again.metrics) == (encoder.facts, encoder.metrics)
    objects = [{"id": 103, "genre": ["war"]}]
    np.testing.assert_array_equal(again.encode(objects), encoder.encode(objects))


def test_a_revision_is_a_branch_or_a_commit(hub: HubFolder, encoder: PretrainedEncoder) -> None:
    first = encoder.push_to_hub("me/films")
    second = encoder.push_to_hub("me/films", revision="next", license="mit")
    assert first != second
    assert hub.branches["me/films", "main"] == first
    for revision in (first, "main", "next", None):
        again = PretrainedEncoder.from_pretrained("me/films", revision=revision)
        assert again.facts == encoder.facts
    with pytest.raises(DataError, match="no such revision of me/films"):
        PretrainedEncoder.from_pretrained("me/films", revision="v9")


def test_what_was_changed_on_the_hub_is_not_loaded(
    hub: HubFolder, encoder: PretrainedEncoder
) -> None:
    commit = encoder.push_to_hub("me/films")
    tensors = hub.root / commit / "model.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(IntegrityError, match="SHA-256 differs"):
        PretrainedEncoder.from_pretrained("me/films")


def test_other_files_of_a_repository_are_not_fetched(
    hub: HubFolder, encoder: PretrainedEncoder, tmp_path: Path
) -> None:
    commit = encoder.push_to_hub("me/films")
    (hub.root / commit / "weights.pkl").write_bytes(b"x")
    (hub.root / commit / "modeling.py").write_text("raise SystemExit")
    PretrainedEncoder.from_pretrained("me/films")
    fetched = {path.name for path in (tmp_path / "cache" / commit).iterdir()}
    assert fetched == {"config.json", "metrics.json", "model.safetensors", "vocabularies.json"}


def test_a_folder_comes_before_the_hub(
    hub: HubFolder, encoder: PretrainedEncoder, tmp_path: Path
) -> None:
    (tmp_path / "me").mkdir()
    encoder.save_pretrained(tmp_path / "me" / "films")
    PretrainedEncoder.from_pretrained("me/films")
    assert hub.calls == []
    with pytest.raises(DataError, match="is a folder, which has no revisions"):
        PretrainedEncoder.from_pretrained("me/films", revision="main")


@pytest.mark.parametrize("name", ["films", "me/films/x", "../films", "me/..", "me/a--b", "", "/x"])
def test_what_is_no_name_of_a_repository_asks_no_hub(
    hub: HubFolder, encoder: PretrainedEncoder, name: str
) -> None:
    assert not is_repository(name)
    with pytest.raises(DataError, match="is no name of a repository; give OWNER/NAME"):
        encoder.push_to_hub(name)
    assert hub.calls == []


def test_refusals_of_the_hub_are_sentences(
    hub: HubFolder, encoder: PretrainedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="no such repository of me/nothing"):
        PretrainedEncoder.from_pretrained("me/nothing")

    def refuse(*_: Any, **__: Any) -> None:
        raise refusal("HfHubHTTPError", 403)

    monkeypatch.setattr(hub, "create_repo", refuse)
    with pytest.raises(ServiceError, match="cannot be used for me/films: 403 from the Hub"):
        encoder.push_to_hub("me/films")


def test_without_the_library_the_sentence_names_the_extra(
    encoder: PretrainedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"pip install 'evergram\[hub\]'"):
        encoder.push_to_hub("me/films")
