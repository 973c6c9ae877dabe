"""A lineage of texts as a folder that plain sentence-transformers, of any release, loads."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.optional import need
from tests.support.text_encoders import encoded
from tests.texts.test_package_encoders import static_model

from evergram.errors import DataError
from evergram.exporting.affine_map import AffineMap
from evergram.exporting.encoder_folder import CardPlace
from evergram.exporting.formats import export_transform
from evergram.exporting.sentence_transformer_folder import (
    _write_own_files,
    folder_card,
    use_common_settings,
)
from evergram.lineage.lineage import Lineage
from evergram.releasing.files.align import AlignSettings, align
from evergram.texts.package_encoders import SentenceTransformerEncoder

need("sentence_transformers")

TEXTS = [" ".join(words) for words in product(["red", "green", "ask", "tell"], repeat=4)]
BOTH = {"query": "ask ", "passage": "tell "}


@pytest.fixture(scope="module", params=[BOTH, {"passage": "tell "}], ids=["both", "one"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """Texts as two models encode them: three dims of length 1, then five that they are a map of."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    folder, draw = tmp_path_factory.mktemp("shop"), np.random.default_rng(0)
    new = draw.normal(size=(5, 5)).astype(np.float32)
    plain = static_model(folder / "plain", (new @ draw.normal(size=(5, 3))).astype(np.float32))
    modules = SentenceTransformer(plain.split(":", 1)[1], device="cpu").children()
    SentenceTransformer(modules=[*modules, Normalize()], device="cpu").save(str(folder / "old"))
    old = encoded(folder, f"sentence-transformers:{folder / 'old'}", texts=TEXTS)
    address = static_model(folder / "new", new, prompts=request.param)
    lineage = Lineage.create(folder / "line", "texts")
    settings = AlignSettings("affine", held_out=0.4)
    align(old, encoded(folder, address, texts=TEXTS), lineage, settings, max_error=float("inf"))
    return lineage


def encoder_of(lineage: Lineage) -> SentenceTransformerEncoder:
    return SentenceTransformerEncoder(str(lineage.path.parent / "new"))


@pytest.mark.parametrize("version", [0, 1])
def test_each_call_of_the_library_encodes_as_the_version(
    shop: Lineage, tmp_path: Path, version: int
) -> None:
    from sentence_transformers import SentenceTransformer

    out = tmp_path / "folder"
    export_transform(shop, out, "sentence-transformers", version)
    new, view = encoder_of(shop), shop.view(version)
    documents, queries = (view.transform(new.encode(TEXTS, r)) for r in ("document", "query"))
    if version == 0:  # whose vectors have length 1
        documents, queries = (v / np.linalg.norm(v, axis=1)[:, None] for v in (documents, queries))
    model = SentenceTransformer(str(out), device="cpu")
    for read, expected in (
        (model.encode(TEXTS), documents),
        (model.encode_document(TEXTS), documents),
        (model.encode_query(TEXTS), queries),
    ):
        np.testing.assert_allclose(read, expected, rtol=1e-5, atol=1e-6)
    # All modules are named as version 3 of the library reads them.
    parts = json.loads((out / "modules.json").read_text())
    kinds = ["StaticEmbedding", "Dense", *(["Normalize"] if version == 0 else [])]
    assert [p["type"] for p in parts] == [f"sentence_transformers.models.{k}" for k in kinds]
    dense = json.loads((out / parts[1]["path"] / "config.json").read_text())
    assert set(dense) == {"in_features", "out_features", "bias", "activation_function"}


def test_another_model_in_the_recorded_place_is_refused(shop: Lineage, tmp_path: Path) -> None:
    place = shop.path.parent / "new"
    with pytest.raises(DataError, match="is a folder with files in it"):
        export_transform(shop, place, "sentence-transformers", 0)
    kept = Path(shutil.move(place, tmp_path / "kept"))
    static_model(place, np.eye(5, dtype=np.float32), prompts={"query": "ask "})
    try:
        with pytest.raises(DataError, match="is not the encoder that was recorded"):
            export_transform(shop, tmp_path / "model", "sentence-transformers", 0)
    finally:
        shutil.rmtree(place)
        shutil.move(kept, place)
    assert not (tmp_path / "model").exists()


def test_a_model_of_a_name_is_saved_by_the_library(shop: Lineage, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = encoder_of(shop)
    _write_own_files(encoder, Path("me/tiny"), tmp_path / "out")
    read = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS, prompt="")
    np.testing.assert_allclose(read, encoder.encode_with(TEXTS[0], TEXTS, "")[:-1], atol=1e-6)


TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "ask", "tell"]
SENTENCES = ["red green ask", "tell", "green red red tell"]
# All that text-embeddings-inference knows (backends/src/lib.rs, ModuleType).
KNOWN = [f"sentence_transformers.models.{k}" for k in ("Transformer", "Pooling", "Normalize")]


def saved(folder: Path, pooling: str | tuple[str, ...] = "mean") -> Path:
    """Return the folder of a tiny BERT model, as the installed library saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, BertTokenizer

    folder.mkdir()
    (folder / "words.txt").write_text("\n".join(TOKENS))
    torch.manual_seed(0)
    sizes: Any = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(TOKENS), hidden_size=8, max_position_embeddings=32, **sizes)
    BertModel(config).save_pretrained(folder / "bert")
    BertTokenizer(str(folder / "words.txt")).save_pretrained(folder / "bert")
    modules = [Transformer(str(folder / "bert"), max_seq_length=5), Pooling(8, pooling)]
    SentenceTransformer(modules=[*modules, Normalize()], device="cpu").save(str(folder / "model"))
    return folder / "model"


def types_of(folder: Path) -> list[str]:
    return [module["type"] for module in json.loads((folder / "modules.json").read_text())]


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_settings_of_today_become_those_that_every_release_reads(
    tmp_path: Path, pooling: str
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = saved(tmp_path / "m", pooling)
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(SENTENCES)
    use_common_settings(folder, list(model.children()))
    assert types_of(folder) == KNOWN
    settings = folder / "sentence_bert_config.json"
    assert json.loads(settings.read_text()) == {"max_seq_length": 5, "do_lower_case": False}
    flags = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert flags.pop("word_embedding_dimension") == 8
    own = {"mean": "mean_tokens", "lasttoken": "lasttoken"}[pooling]
    ways = [k for k, v in flags.items() if v and k.startswith("pooling_mode_")]
    assert ways == [f"pooling_mode_{own}"]
    again = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_array_equal(again.encode(SENTENCES), vectors)
    # Settings of that form stay as they are.
    before = {p: p.read_bytes() for p in folder.rglob("*.json")}
    use_common_settings(folder, list(again.children()))
    assert {p: p.read_bytes() for p in folder.rglob("*.json")} == before
    # Early models have none, such as those whose settings are in `sentence_roberta_config.json`.
    settings.unlink()
    use_common_settings(folder, list(again.children()))
    assert types_of(folder) == KNOWN
    assert not settings.exists()


def test_what_no_earlier_release_can_be_told_stays(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = saved(tmp_path / "m", ("mean", "max"))
    kept = (folder / "1_Pooling" / "config.json").read_bytes()
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "unpad_inputs": False}))
    types = types_of(folder)
    use_common_settings(folder, list(SentenceTransformer(str(folder), device="cpu").children()))
    assert types_of(folder) == [*types[:2], KNOWN[2]]
    assert (folder / "1_Pooling" / "config.json").read_bytes() == kept


def test_the_card_shows_the_record_of_that_version_and_no_other_number() -> None:
    arrays = np.eye(3, 4, dtype=np.float32), np.zeros(3, dtype=np.float32)
    way = AffineMap("as_v0", "Reads vectors of version 2.", *arrays)
    held_out = {
        "transformed": {"cosine": 0.98765, "overlap@10": 0.75, "relative_error": None},
        "as_is": {"cosine": 0.1},
    }
    certificate = {"0": {"relative": 0.12345}, "1": {"relative": 0.6}}
    metrics = {"alignment": {"certificate": certificate, "held_out": held_out}}
    none: dict[str, Any] = {"metrics": {}}
    place = CardPlace("texts-as-v0", None)
    text, nothing = (folder_card(way, 0, measured, place) for measured in (metrics, none))
    assert "| relative error as version 0, by the certificate | 0.1235 |" in text
    assert "| cosine, held-out objects, as the version before | 0.9877 |" in text
    assert "| overlap@10, held-out objects, as the version before | 0.75 |" in text
    for absent in ("0.6 ", "| 0.1 |", "None", "relative error, held-out", "own"):
        assert absent not in text
    assert "no measurement" not in text
    assert "The record has no measurement of it." in nothing
    assert 'SentenceTransformer("texts-as-v0")' in text
    assert "# [1, 3]" in text


def test_a_licence_belongs_to_a_folder(lineage: Lineage, tmp_path: Path) -> None:
    for form, license, named in (
        ("duckdb", "mit", "model card of sentence-transformers"),
        ("sentence-transformers", "MIT License", "'MIT License'"),
        ("sentence-transformers", None, "no encoder of text"),
    ):
        with pytest.raises(DataError, match=named):
            export_transform(lineage, tmp_path / "way", form, 0, license=license)
    assert list(tmp_path.glob("way*")) == []
