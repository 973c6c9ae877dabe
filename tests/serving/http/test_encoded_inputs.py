"""Texts are encoded by the newest version's encoder; drift is of stored objects alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.support.running_service import ADDRESS
from tests.support.text_encoders import ADDRESSES, text_lineage

from evergram.serving.app import create_app
from evergram.serving.monitoring.drift import Drift
from evergram.serving.service import Service
from evergram.serving.texts.served_texts import ServedTexts

TEXTS = ["word1 word2 word3", "word4 word9"]


def test_drift_sees_no_texts(tmp_path: Path) -> None:
    """A text need be no stored object: queries are distributed otherwise, and no sign of drift."""
    service = Service.open(text_lineage(tmp_path).path, texts=ServedTexts(ADDRESSES))
    seen: list[int] = []
    patch = pytest.MonkeyPatch.context()
    with TestClient(create_app(service), base_url=ADDRESS) as http, patch as patched:
        patched.setattr(Drift, "note_vectors", lambda *noted: seen.append(len(noted[-1])))
        assert http.post("/v1/search", json={"input": TEXTS, "k": 3}).status_code == 200
        assert http.post("/v1/embeddings", json={"input": TEXTS}).status_code == 200
        assert seen == []
