"""The page on encoders of one's own runs as it is printed, and what it claims holds."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evergram.lineage.lineage import Lineage

PAGE = Path(__file__).parents[2] / "docs" / "own-encoder.md"
# The models of the page are trained: a minute and more.
pytestmark = pytest.mark.long
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names that the page's blocks leave, but for those that need Lightning."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for block in BLOCKS:
            if "import lightning" not in block:
                exec(compile(block, PAGE.name, "exec"), names)
        yield names


@pytest.mark.parametrize("name", ["lineage", "with_heads"])
def test_they_learn_and_the_past_can_be_read(space: dict[str, Any], name: str) -> None:
    lineage: Lineage = space[name]
    for version in (0, 1):
        metrics = lineage.metrics(version)["metrics"]
        assert metrics["model"]["recall@20"] > 2 * metrics["popularity"]["recall@20"]
        record = lineage.manifest(version).encoder
        assert record is not None
        assert record.kind == "module"
        assert set(record.options) == {"dim"}
    ranking = lineage.metrics(1)["compatibility"]["0"]["ranking"]
    past, chain, raw = (ranking[k]["recall@20"] for k in ("past", "chain", "raw_candidates"))
    assert chain > 0.9 * past
    assert raw < 0.7 * past
    assert lineage.metrics(1)["certificate"]["0"]


def test_what_is_read_again_is_what_was_published(space: dict[str, Any]) -> None:
    ids, stored = space["lineage"].embeddings("candidate")
    row = ids.to_pylist().index("article-3")
    new, known = space["vectors"]
    np.testing.assert_allclose(known, stored[row].numpy(), rtol=1e-4, atol=1e-5)
    # An article that came later lies with its topic.
    scores = stored.numpy() @ new / np.linalg.norm(stored.numpy(), axis=1)
    nearest = [ids[int(i)].as_py() for i in np.argsort(-scores)[:10]]
    assert sum(int(name.split("-")[1]) % 8 == 3 for name in nearest) >= 7


@pytest.mark.filterwarnings("ignore")  # its own use of torch
def test_the_page_under_lightning(
    space: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed; pip install 'evergram[lightning]'")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = dict(space)
    (block,) = (b for b in BLOCKS if "import lightning" in b)
    exec(compile(block, PAGE.name, "exec"), names)
    metrics = names["artefact"].metrics["metrics"]
    assert metrics["model"]["recall@20"] > 2 * metrics["popularity"]["recall@20"]
