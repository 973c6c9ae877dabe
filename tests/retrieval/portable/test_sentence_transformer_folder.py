"""A lineage of texts as a folder that plain sentence-transformers loads."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.support.command import Command
from tests.support.optional import need
from tests.support.without_evergram import elsewhere
from tests.texts.test_sentence_transformer import static_model

from evergram.errors import DataError
from evergram.lineage.lineage import Lineage
from evergram.retrieval.portable.formats import export_transform
from evergram.retrieval.portable.sentence_transformer_folder import _write_own_files
from evergram.texts.sentence_transformer import SentenceTransformerEncoder

need("sentence_transformers")

WORDS = ["red", "green", "ask", "tell"]
TEXTS = [" ".join(words) for words in product(WORDS, repeat=4)]
ENCODE = """
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = open(sys.argv[2]).read().splitlines()
np.save(sys.argv[3], model.encode(texts, prompt_name=sys.argv[4] if len(sys.argv) > 4 else None))
"""


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


@pytest.mark.parametrize("role", ["document", "query"])
def test_plain_sentence_transformers_encodes_as_version_0(
    tmp_path: Path, evergram: Command, addresses: list[str], role: str
) -> None:
    lineage = published(tmp_path, evergram, addresses)
    result = evergram(
        *("vectors", "export-transform", tmp_path / "lineage", tmp_path / "as-v0", "--as", 0),
        *("--format", "sentence-transformers", "--json"),
    )
    assert result.code == 0, result.err
    assert result.json["dims"] == {"from": 5, "to": 3}
    (tmp_path / "asked").write_text("\n".join(TEXTS))
    elsewhere(ENCODE, tmp_path / "as-v0", tmp_path / "asked", tmp_path / "read.npy", role)
    read = np.load(tmp_path / "read.npy")
    # By the new model's table, and the chain.
    from evergram.texts.addresses import open_text_encoder

    new = open_text_encoder(addresses[1]).encode(TEXTS, "query" if role == "query" else "document")
    expected = lineage.view(0).transform(new)
    np.testing.assert_allclose(read, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "prompts",
    [{}, {"query": "ask "}, {"passage": "tell "}, {"query": "ask ", "passage": "tell "}],
    ids=["none", "query", "document", "both"],
)
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


def test_a_model_of_a_name_is_saved_by_the_library(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformerEncoder(static_model(tmp_path / "m").split(":", 1)[1])
    _write_own_files(encoder, Path("me/tiny"), tmp_path / "out")
    read = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(read, encoder.encode(TEXTS), atol=1e-6)
