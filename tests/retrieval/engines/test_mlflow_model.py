"""A version as a model of the real MLflow: saved, moved, loaded, logged and damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.support.lineages import lineage_of

from evergram.errors import DataError, IntegrityError
from evergram.lineage.view import View

mlflow = pytest.importorskip("mlflow.pyfunc", reason="needs evergram[mlflow]")
# Warnings of its own are not ours to fail on.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]


@pytest.fixture
def view(tmp_path: Path) -> View:
    return lineage_of(tmp_path / "line").view(version=0)


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


def test_a_model_is_logged_to_a_run(view: View, tmp_path: Path) -> None:
    import mlflow as whole

    from evergram.retrieval.engines.mlflow_model import log_model

    pytest.importorskip("sqlalchemy", reason="MLflow keeps its runs in a database")
    whole.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    try:
        whole.create_experiment("films", artifact_location=str(tmp_path / "artifacts"))
        whole.set_experiment("films")
        with whole.start_run():
            logged = log_model(view, "object")
        model = mlflow.load_model(logged.model_uri)
        assert len(model.predict([1])["vector"][0]) == view.dim
    finally:
        whole.set_tracking_uri(None)
