"""`evergram vectors encode`, and the lineage that is made of its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command import Command
from tests.support.text_encoders import ADDRESSES, sentences

from evergram.lineage.lineage import Lineage

TEXTS = sentences()
COLUMNS = ("--id-column", "key", "--text-column", "body")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    rows = [json.dumps({"key": f"t{i}", "body": text}) for i, text in enumerate(TEXTS)]
    path.write_text("\n".join(rows))
    return path


def test_texts_become_two_versions_that_record_their_encoders(
    texts: Path, tmp_path: Path, evergram: Command
) -> None:
    facts = []
    for name, address in zip(("old.parquet", "new.npy"), ADDRESSES, strict=False):
        out = tmp_path / name
        ran = evergram("vectors", "encode", texts, out, "--encoder", address, *COLUMNS, "--json")
        facts.append(ran.json)
    assert [fact["rows"] for fact in facts] == [400, 400]
    assert [fact["dim"] for fact in facts] == [10, 12]
    assert facts[0]["fingerprint"] is None
    line = tmp_path / "line"
    assert evergram("vectors", "import", tmp_path / "old.parquet", "--lineage", line).code == 0
    assert evergram("vectors", "align", "0", tmp_path / "new.npy", "--lineage", line).code == 0
    records = [manifest.text_encoder for manifest in Lineage.open(line).versions]
    assert [record and record.address for record in records] == ADDRESSES[:2]


def test_prompts_and_the_role_are_passed_on(texts: Path, tmp_path: Path, evergram: Command) -> None:
    options = ("--query-prompt", "ask ", "--role", "query", "--encoder", ADDRESSES[0])
    ran = evergram("vectors", "encode", texts, tmp_path / "q.parquet", *options, *COLUMNS)
    assert ran.code == 0
    assert "400 texts, 10 dims, by python:" in ran.out
    assert "known again by its canaries alone" in ran.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--encoder", "nonsense", *COLUMNS), "is no address of an encoder of text"),
        (("--encoder", ADDRESSES[0], "--role", "title"), "it is document or query"),
        (("--encoder", ADDRESSES[0]), "is no JSON object with 'id' and 'text'"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    options: tuple[str, ...], words: str, texts: Path, tmp_path: Path, evergram: Command
) -> None:
    assert words in evergram("vectors", "encode", texts, tmp_path / "v.npy", *options).refusal()
    assert not (tmp_path / "v.npy").exists()
