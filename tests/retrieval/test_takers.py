"""A version's vectors in the real Feast and as a model of the real MLflow."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from tests.support.lineages import lineage_of

from evergram.errors import DataError, IntegrityError
from evergram.lineage.view import View

feast = pytest.importorskip("feast", reason="needs evergram[feast]")

# Warnings of its own are not ours to fail on.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

SINCE = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def view(tmp_path: Path) -> View:
    return lineage_of(tmp_path / "line").view(version=0)


def test_feast_joins_vectors_as_of_a_time_and_serves_them(view: View, tmp_path: Path) -> None:
    import pandas as pd

    from evergram.retrieval.engines.feast_source import feature_view

    repository = feast.RepoConfig(
        project="films",
        registry=str(tmp_path / "registry.db"),
        provider="local",
        online_store={"type": "sqlite", "path": str(tmp_path / "online.db")},
        offline_store={"type": "dask"},
        entity_key_serialization_version=3,
    )
    store = feast.FeatureStore(config=repository)
    entity, features = feature_view(
        view, "object", tmp_path / "films.parquet", name="films_v0", since=SINCE
    )
    store.apply([entity, features])
    _, vectors = view.embeddings("object")

    day = timedelta(days=1)
    asked = pd.DataFrame(
        {"id": [12, 7, 7], "event_timestamp": [SINCE + day, SINCE + day, SINCE - day]}
    )
    joined = store.get_historical_features(asked, features=["films_v0:vector"]).to_df()
    after = joined[joined["event_timestamp"] > SINCE].set_index("id")["vector"]
    np.testing.assert_array_equal(np.stack(after[[12, 7]]), vectors[[12, 7]].numpy())
    # Of a time before, Feast gives no row, or one without a vector.
    assert joined[joined["event_timestamp"] < SINCE]["vector"].isna().all()

    store.materialize(SINCE - day, SINCE + day)
    online = store.get_online_features(["films_v0:vector"], [{"id": 12}, {"id": 10_000}]).to_dict()
    np.testing.assert_array_equal(np.float32(online["vector"][0]), vectors[12].numpy())
    assert online["vector"][1] is None
    tags = store.get_feature_view("films_v0").tags
    assert (tags["evergram_version"], tags["evergram_fingerprint"]) == ("0", view.fingerprint)


def test_a_file_appears_whole_or_not_at_all(
    view: View, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written twice, at first without the times."""
    import pyarrow.parquet as pq

    from evergram.retrieval.engines import feast_source

    path = tmp_path / "films.parquet"
    written = pq.write_table

    def cut_off(table: object, where: Path) -> None:
        written(table, where)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", cut_off)
    with pytest.raises(DataError, match=r"films\.parquet cannot be written: .*No space left"):
        feast_source.feature_view(view, "object", path, name="a", since=SINCE)
    assert sorted(tmp_path.glob("*films*")) == []
    monkeypatch.undo()
    feast_source.feature_view(view, "object", path, name="a", since=SINCE)
    table = pq.read_table(path)
    ids, vectors = view.embeddings("object")
    assert table["id"].combine_chunks().equals(ids)
    np.testing.assert_array_equal(np.stack(table["vector"].to_numpy()), vectors.numpy())
    assert set(table["event_timestamp"].to_pylist()) == {SINCE}
    exported = tmp_path / "exported.parquet"
    view.export(exported, "object")
    assert table.schema.metadata == pq.read_schema(exported).metadata


mlflow = pytest.importorskip("mlflow.pyfunc", reason="needs evergram[mlflow]")


def test_a_saved_model_gives_the_vectors_of_ids_without_the_lineage(
    view: View, tmp_path: Path
) -> None:
    import pandas as pd

    from evergram.retrieval.engines.mlflow_model import save_model

    _, vectors = view.embeddings("object")
    save_model(view, tmp_path / "model", "object")
    shutil.rmtree(tmp_path / "line")
    shutil.move(tmp_path / "model", tmp_path / "elsewhere")
    loaded = mlflow.load_model(str(tmp_path / "elsewhere"))
    answer = loaded.predict(pd.DataFrame({"id": [12, 7, 12]}))
    assert answer["id"].tolist() == [12, 7, 12]
    np.testing.assert_array_equal(np.stack(answer["vector"]), vectors[[12, 7, 12]].numpy())
    assert loaded.metadata.metadata["evergram"]["fingerprint"] == view.fingerprint
    absent = loaded.predict([3, 10_000])["vector"]
    assert absent[0] == vectors[3].tolist()
    assert absent[1] is None
    assert not list((tmp_path / "elsewhere").rglob("*.pkl"))


def test_ids_that_are_texts_and_input_that_does_not_fit(tmp_path: Path) -> None:
    import pandas as pd

    from evergram.retrieval.engines.mlflow_model import save_model

    view = lineage_of(tmp_path / "texts", text=True).view(version=1)
    model = mlflow.load_model(str(save_model(view, tmp_path / "model", "object")))
    assert len(model.predict(pd.Series(["5"]))["vector"][0]) == view.dim
    with pytest.raises(DataError, match="The stored ids are string; give such ids"):
        model.predict([5])
    with pytest.raises(DataError, match=r"no column 'id'; it has key\. Rename one"):
        model.predict(pd.DataFrame({"key": ["5"]}))
    with pytest.raises(DataError, match="is there already"):
        save_model(view, tmp_path / "model", "object")


def test_a_changed_file_is_refused(view: View, tmp_path: Path) -> None:
    from evergram.retrieval.engines.mlflow_model import save_model

    folder = save_model(view, tmp_path / "model", "object")
    [record] = folder.rglob("version.json")
    facts = json.loads(record.read_text())
    assert (facts["version"], facts["rows"]) == (0, 300)
    with record.with_name("vectors.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(IntegrityError, match=r"differs from its hash in version\.json"):
        mlflow.load_model(str(folder))
