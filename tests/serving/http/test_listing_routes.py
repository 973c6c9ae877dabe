"""The lists of versions, models and consumers, for each reader."""

from __future__ import annotations

from tests.support.running_service import Running

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage


def test_versions_and_models_are_listed(served: Running) -> None:
    body = served.get("/v1/versions").json()
    assert [v["dim"] for v in body["data"]] == [6, 8, 10]
    assert [v["default"] for v in body["data"]] == [False, False, True]
    assert body["data"][0]["computed_from"] == [2]
    assert "embeddings/2/object.parquet" in body["data"][2]["checked"]
    canaries = "versions/1/canary.parquet"
    assert canaries in body["data"][1]["unchecked"]
    assert served.get("/v1/dashboard").status_code == 200
    assert canaries in served.get("/v1/versions").json()["data"][1]["checked"]
    names = [m["id"] for m in served.get("/v1/models").json()["data"]]
    assert names == ["line@v0", "line@v1", "line@v2", "line"]
    assert served.get("/v1/models/line@v1").json()["id"] == "line@v1"
    assert served.get("/v1/models/line@v9").status_code == 404


def test_a_model_that_is_not_listed_is_refused_by_name(served: Running) -> None:
    error = served.get("/v1/models/line@v9").json()["error"]
    assert (error["code"], error["param"]) == ("unknown_version", "model")
    assert error["message"] == "There is no model 'line@v9'; /v1/models lists them."


def test_labels_are_models_of_the_version_that_they_are_on(served: Running) -> None:
    Lineage.open(served.folder).label("canary", 0)
    assert served.service.refresh()
    created = {m["id"]: m["created"] for m in served.get("/v1/models").json()["data"]}
    assert created["line@canary"] == created["line@v0"]


def test_consumers_are_listed_without_their_tokens(served: Running) -> None:
    lineage, registry = Lineage.open(served.folder), ConsumerRegistry.open(served.folder)
    lineage.label("canary", 1)
    registry.add("ads", "canary", lineage.resolve, allowed=["v0"])
    assert served.service.refresh()
    (ads,) = served.get("/v1/consumers").json()["data"]
    assert set(ads) == {"name", "pinned", "version", "allowed", "since"}
    assert (ads["name"], ads["pinned"], ads["allowed"]) == ("ads", "canary", ["canary", "v0"])
    assert ads["version"] == 1
