"""The code of docs/penalty.md and of the room's docstrings runs, with the results it states."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import evergram.gramian as room

PAGE = (Path(__file__).parents[2] / "docs" / "penalty.md").read_text()


def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    first, cached, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    loop = first.split("penalty = ")[1].split("print")[0]
    assert len(loop.splitlines()) <= 10, "the page promises ten lines"
    torch.manual_seed(0)
    draw = [torch.randint(n, (6400,)) for n in (100, 50)]
    pairs = list(zip(*(ids.view(100, 64) for ids in draw), strict=True))
    space: dict[str, Any] = {
        "users": torch.nn.Embedding(100, 32),
        "items": torch.nn.Embedding(50, 32),
        "batches": pairs * 8,
        "other_batches": pairs[50:] * 16,
        "micro_batches": pairs[:4],
    }
    exec(compile(first, "penalty.md", "exec"), space)
    errors = re.fullmatch(r"GramianErrors\(query=(.*), candidate=(.*)\)\n", capsys.readouterr().out)
    assert errors is not None
    assert all(float(error) < 0.1 for error in errors.groups())
    of_averages = space["penalty"]
    exec(compile(cached, "penalty.md", "exec"), space)
    small = space["penalty"].gramian_error(space["users"].weight, space["items"].weight)
    assert max(small) < 0.01  # Adam moves rows that are not in a batch, too
    space["penalty"] = of_averages
    before = space["penalty"].query_gramian
    exec(compile(second, "penalty.md", "exec"), space)
    assert not torch.equal(space["penalty"].query_gramian, before)


def test_every_argument_is_documented_with_its_default() -> None:
    import inspect

    from evergram.gramian import GramianPenalty

    table = PAGE.split("## Arguments")[1].split("\n\n")[1]
    rows = {
        name: row.split("|")[2].strip().strip("`").strip('"')
        for row in table.splitlines()[2:]
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    defaults = {n: p.default for n, p in inspect.signature(GramianPenalty).parameters.items()}
    assert set(rows) == set(defaults)
    for name, default in defaults.items():
        expected = {inspect.Parameter.empty: "", None: "none"}.get(default, str(default))
        assert rows[name] == expected, name


MODULES = [f"evergram.gramian.{m.name}" for m in pkgutil.iter_modules(room.__path__)]


def test_the_examples_of_the_docstrings_run() -> None:
    for name in ("evergram.gramian", *MODULES):
        assert doctest.testmod(importlib.import_module(name)).failed == 0, name
