"""An OpenAI client that sends strings, pinned to version 0, while encoders change behind it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.support.running_service import server
from tests.support.text_encoders import encoded

from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import AlignSettings, align
from evergram.releasing.past_file import import_embeddings
from evergram.serving.app import create_app
from evergram.serving.service import Service
from evergram.serving.texts import ServedTexts
from evergram.texts.text_encoder import Vectors

# Seconds in which the service must have loaded a new version and its encoder.
PATIENCE = 120.0


def through_changes(
    folder: Path,
    addresses: Sequence[str],
    corpus: list[str],
    texts: list[str],
    settings: AlignSettings | None = None,
) -> list[Vectors]:
    """Return a pinned client's vectors of texts before and after each change of the encoder.

    Neither the client nor the service is restarted.
    """
    import openai

    lineage = Lineage.create(folder / "line", "line")
    import_embeddings(encoded(folder, addresses[0], texts=corpus), lineage)
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add("search", "v0", lineage.resolve)
    token = consumers.issue_token("search")
    service = Service(lineage.path, texts=ServedTexts(addresses))
    answers = []
    with (
        server(create_app(service)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as client,
    ):
        for number, address in enumerate(addresses):
            if number:
                file = encoded(folder, address, texts=corpus)
                align(number - 1, file, Lineage.open(lineage.path), settings or AlignSettings())
            until = time.monotonic() + PATIENCE
            while True:
                answer = client.embeddings.create(model="line", input=texts)
                origin = (answer.model_extra or {})["evergram"]
                assert (answer.model, origin["version"]) == ("line@v0", 0)
                if origin["computed_from"] == [number] * len(texts):
                    break
                if time.monotonic() > until:
                    pytest.fail(f"version {number} was not loaded")
                time.sleep(0.05)
            answers.append(np.array([row.embedding for row in answer.data], dtype=np.float32))
    return answers
