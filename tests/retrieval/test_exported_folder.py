"""A lineage of texts as a folder that plain sentence-transformers, of any release, loads."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.command import Command
from tests.support.optional import need
from tests.texts.test_sentence_transformer import static_model

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.affine_map import AffineMap
from evergram.retrieval.portable.folder_card import folder_card
from evergram.retrieval.portable.formats import export_transform
from evergram.retrieval.portable.library_settings import use_common_settings
from evergram.retrieval.portable.sentence_transformer_folder import _write_own_files
from evergram.retrieval.pretrained.model_card import CardPlace
from evergram.texts.sentence_transformer import SentenceTransformerEncoder

need("sentence_transformers")

WORDS = ["red", "green", "ask", "tell"]

TEXTS = [" ".join(words) for words in product(WORDS, repeat=4)]


@pytest.fixture
def addresses(tmp_path: Path) -> list[str]:
    """Two models of the same words: three dims, then five that the first is a map of."""
    draw = np.random.default_rng(0)
    new = draw.normal(size=(5, 5)).astype(np.float32)
    old = (new @ draw.normal(size=(5, 3))).astype(np.float32)
    prompts = {"query": "ask ", "passage": "tell "}
    return [
        static_model(tmp_path / "old", old),
        static_model(tmp_path / "new", new, prompts=prompts),
    ]


def published(folder: Path, evergram: Command, addresses: list[str]) -> Lineage:
    """Return a lineage of the texts as the models encode them."""
    texts = folder / "texts.csv"
    texts.write_text("id,text\n" + "\n".join(f"{n},{t}" for n, t in enumerate(TEXTS)))
    lineage = folder / "lineage"
    for number, address in enumerate(addresses):
        vectors = folder / f"{number}.parquet"
        assert evergram("vectors", "encode", texts, vectors, "--encoder", address).code == 0
        if number:
            done = evergram(
                "vectors",
                "align",
                number - 1,
                vectors,
                "--lineage",
                lineage,
                "--transform",
                "affine",
                "--held-out",
                0.4,
            )
        else:
            done = evergram("vectors", "import", vectors, "--lineage", lineage, "--name", "texts")
        assert done.code == 0, done.err
    return Lineage.open(lineage)


@pytest.mark.parametrize("prompts", [{"passage": "tell "}, {"query": "ask ", "passage": "tell "}])
def test_each_call_of_the_library_encodes_by_the_right_prompt(
    tmp_path: Path, evergram: Command, addresses: list[str], prompts: dict[str, str]
) -> None:
    from sentence_transformers import SentenceTransformer

    table = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    addresses[1] = static_model(tmp_path / "other", table, prompts=prompts)
    lineage = published(tmp_path, evergram, addresses)
    export_transform(lineage, tmp_path / "as-v0", "sentence-transformers", 0)
    model = SentenceTransformer(str(tmp_path / "as-v0"), device="cpu")
    new = SentenceTransformerEncoder(addresses[1].split(":", 1)[1])
    documents, queries = (
        lineage.view(0).transform(new.encode(TEXTS, "query" if asks else "document"))
        for asks in (False, True)
    )
    np.testing.assert_allclose(model.encode(TEXTS), documents, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.encode_document(TEXTS), documents, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.encode_query(TEXTS), queries, rtol=1e-5, atol=1e-6)


def test_vectors_are_normalised_where_those_of_the_past_version_were(
    tmp_path: Path, evergram: Command, addresses: list[str]
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    plain = SentenceTransformer(addresses[0].split(":", 1)[1], device="cpu")
    unit = SentenceTransformer(modules=[*plain.children(), Normalize()], device="cpu")
    unit.save(str(tmp_path / "unit"))
    published(tmp_path, evergram, [f"sentence-transformers:{tmp_path / 'unit'}", addresses[1]])
    lineage = Lineage.open(tmp_path / "lineage")
    for version, normalised in ((0, True), (1, False)):
        out = tmp_path / f"as-{version}"
        export_transform(lineage, out, "sentence-transformers", version)
        parts = json.loads((out / "modules.json").read_text())
        kinds = [part["type"].rsplit(".", 1)[1] for part in parts]
        assert kinds == ["StaticEmbedding", "Dense", *(["Normalize"] if normalised else [])]
        # All are named as version 3 of the library reads them.
        named = [part["type"].rsplit(".", 1)[0] for part in parts]
        assert set(named) == {"sentence_transformers.models"}
        dense = json.loads((out / parts[1]["path"] / "config.json").read_text())
        assert set(dense) == {"in_features", "out_features", "bias", "activation_function"}
        lengths = np.linalg.norm(SentenceTransformer(str(out), device="cpu").encode(TEXTS), axis=1)
        assert np.allclose(lengths, 1, atol=1e-5) == normalised


def test_another_model_in_the_recorded_place_is_refused(
    tmp_path: Path, evergram: Command, addresses: list[str]
) -> None:
    lineage = published(tmp_path, evergram, addresses)
    static_model(tmp_path / "new", np.eye(5, dtype=np.float32), prompts={"query": "ask "})
    with pytest.raises(DataError, match="is not the encoder that was recorded"):
        export_transform(lineage, tmp_path / "model", "sentence-transformers", 0)
    with pytest.raises(DataError, match="is a folder with files in it"):
        export_transform(lineage, tmp_path / "new", "sentence-transformers", 0)
    assert not (tmp_path / "model").exists()


need("sentence_transformers")

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "ask", "tell"]

SENTENCES = ["red green ask", "tell", "green red red tell"]

# All that text-embeddings-inference knows (backends/src/lib.rs, ModuleType).
KNOWN = [f"sentence_transformers.models.{k}" for k in ("Transformer", "Pooling", "Normalize")]


def saved(
    folder: Path, pooling: str | tuple[str, ...] = "mean", *, normalises: bool = True
) -> Path:
    """Return the folder of a tiny BERT model, as the installed library saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, BertTokenizer

    folder.mkdir()
    (folder / "words.txt").write_text("\n".join(TOKENS))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(TOKENS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder / "bert")
    BertTokenizer(str(folder / "words.txt")).save_pretrained(folder / "bert")
    modules: list[torch.nn.Module] = [Transformer(str(folder / "bert"), max_seq_length=5)]
    modules += [Pooling(8, pooling), *([Normalize()] if normalises else [])]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "model"))
    return folder / "model"


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_settings_of_today_become_those_that_every_release_reads(
    tmp_path: Path, pooling: str
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = saved(tmp_path / "m", pooling)
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(SENTENCES)
    use_common_settings(folder, list(model.children()))
    assert [m["type"] for m in json.loads((folder / "modules.json").read_text())] == KNOWN
    transformer = json.loads((folder / "sentence_bert_config.json").read_text())
    assert transformer == {"max_seq_length": 5, "do_lower_case": False}
    flags = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert flags.pop("word_embedding_dimension") == 8
    assert [k for k, v in flags.items() if v and k.startswith("pooling_mode_")] == [
        f"pooling_mode_{'lasttoken' if pooling == 'lasttoken' else pooling + '_token'}"
        + ("s" if pooling in ("mean", "max") else "")
    ]
    again = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_array_equal(again.encode(SENTENCES), vectors)
    # Settings of that form stay as they are.
    before = {p: p.read_bytes() for p in folder.rglob("*.json")}
    use_common_settings(folder, list(again.children()))
    assert {p: p.read_bytes() for p in folder.rglob("*.json")} == before


def test_what_no_earlier_release_can_be_told_stays(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = saved(tmp_path / "m", ("mean", "max"))
    kept = (folder / "1_Pooling" / "config.json").read_bytes()
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "unpad_inputs": False}))
    types = [m["type"] for m in json.loads((folder / "modules.json").read_text())]
    modules = list(SentenceTransformer(str(folder), device="cpu").children())
    use_common_settings(folder, modules)
    now = [m["type"] for m in json.loads((folder / "modules.json").read_text())]
    assert now == [*types[:2], KNOWN[2]]
    assert (folder / "1_Pooling" / "config.json").read_bytes() == kept


WAY = AffineMap(
    *("as_v0", "Reads vectors of version 2."),
    np.eye(3, 4, dtype=np.float32),
    np.zeros(3, dtype=np.float32),
)


def card(metrics: dict[str, Any], license: str | None = None) -> str:
    return folder_card(WAY, 0, metrics, CardPlace("texts-as-v0", license))


def test_the_record_of_that_version_is_shown_and_no_other_number() -> None:
    held_out = {
        "transformed": {"cosine": 0.98765, "overlap@10": 0.75, "relative_error": None},
        "as_is": {"cosine": 0.1},
    }
    certificate = {"0": {"relative": 0.12345}, "1": {"relative": 0.6}}
    text = card({"alignment": {"certificate": certificate, "held_out": held_out}})
    assert "| relative error as version 0, by the certificate | 0.1235 |" in text
    assert "| cosine, held-out objects, as the version before | 0.9877 |" in text
    assert "| overlap@10, held-out objects, as the version before | 0.75 |" in text
    for absent in ("0.6 ", "| 0.1 |", "None", "relative error, held-out", "own"):
        assert absent not in text
    assert "no measurement" not in text
    assert "The record has no measurement of it." in card({"metrics": {"model": {}}})
    assert 'SentenceTransformer("texts-as-v0")' in text
    assert "# [1, 3]" in text


def test_a_licence_belongs_to_a_folder(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stands in the model card of sentence-transformers"):
        export_transform(lineage, tmp_path / "way.sql", "duckdb", license="mit")
    with pytest.raises(DataError, match="cannot stand in a model card"):
        export_transform(lineage, tmp_path / "way", "sentence-transformers", license="MIT License")
    with pytest.raises(DataError, match="no encoder of text"):
        export_transform(lineage, tmp_path / "way", "sentence-transformers", 0)
    assert list(tmp_path.glob("way*")) == []


def test_early_models_without_such_settings_are_named_alone(tmp_path: Path) -> None:
    """As those whose settings are in `sentence_roberta_config.json`."""
    from sentence_transformers import SentenceTransformer

    folder = saved(tmp_path / "m")
    modules = list(SentenceTransformer(str(folder), device="cpu").children())
    (folder / "sentence_bert_config.json").unlink()
    use_common_settings(folder, modules)
    assert [m["type"] for m in json.loads((folder / "modules.json").read_text())] == KNOWN
    assert not (folder / "sentence_bert_config.json").exists()


def test_a_model_of_a_name_is_saved_by_the_library(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformerEncoder(static_model(tmp_path / "m").split(":", 1)[1])
    _write_own_files(encoder, Path("me/tiny"), tmp_path / "out")
    read = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(read, encoder.encode(TEXTS), atol=1e-6)
