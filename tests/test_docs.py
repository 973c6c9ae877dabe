"""What is there is documented, and what is documented runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel

from evergram.cli import app
from evergram.compatibility.second_moments import SecondMoments
from evergram.evaluation.probe_models import load_probe_model
from evergram.training.recipe import Recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    names = [c.name or getattr(c.callback, "__name__", "") for c in app.registered_commands]
    assert len(names) >= 8
    for name in names:
        assert f"## `evergram {name} " in text, name


def test_every_recipe_key_is_documented_with_its_table() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text()
    sections = {"": text.split("## `[")[0]} | {
        part.split("]`")[0]: part for part in text.split("## `[")[1:]
    }
    for name, field in Recipe.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for key in kind.model_fields:
                assert f"`{key}`" in sections[name], f"{name}.{key}"
        else:
            assert f"`{name}`" in sections[""], name


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert len([line for line in block[1].splitlines() if line.strip()]) <= 11
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    exec(compile(block[1], "README.md", "exec"), {})
    assert (tmp_path / "candidates-as-v0.parquet").is_file()
    assert "recall@20" in capsys.readouterr().out


def test_the_python_of_align_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a planted map, its blocks, another shard, and records that are taken out again."""
    text = (ROOT / "docs" / "align.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    draw = torch.Generator().manual_seed(0)
    new = torch.randn(900, 384, generator=draw)
    old = new @ torch.randn(384, 300, generator=draw)
    parts = {}
    for name, part in (("shard", slice(300, 600)), ("held", slice(600, 900))):
        parts[name] = SecondMoments(300, 384)
        parts[name].add(old[part], new[part])
    monkeypatch.chdir(tmp_path)
    parts["shard"].save(tmp_path / "other-shard.safetensors")
    wrong = torch.randn(5, 300, generator=draw), torch.randn(5, 384, generator=draw)
    space: dict[str, Any] = {
        "blocks": [(old[:300], new[:300]), wrong],
        "held": parts["held"],
        "forgotten_old": wrong[0],
        "forgotten_new": wrong[1],
    }
    exec(compile(block[1], "align.md", "exec"), space)
    torch.testing.assert_close(space["back"](new), old, rtol=1e-3, atol=1e-2)
    assert space["forward"](old).shape == new.shape


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_models_of_the_consumers_page_can_be_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.linear_model import LogisticRegression

    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "consumers.md").read_text(), re.DOTALL
    )
    vectors = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    classifier = LogisticRegression().fit(vectors.numpy(), (vectors[:, 0] > 0).numpy())
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        space = {"classifier": classifier, "vectors": vectors.numpy()}
        exec(compile(block, "consumers.md", "exec"), space)
    expected = classifier.predict(vectors.numpy()).tolist()
    for name in ("ads.onnx", "ads.safetensors"):
        predicted = load_probe_model(tmp_path / name).answers(vectors.numpy()).predicted
        assert predicted is not None
        assert [bool(p) for p in predicted.to_pylist()] == expected


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_readmes_numbers_are_filled_in() -> None:
    for name in ("demo", "movielens", "gowalla", "pinned"):
        section = README.split(f"<!-- {name} -->")[1].split(f"<!-- end {name} -->")[0]
        assert re.search(r"\d\.\d{4}", section), f"run: python -m benchmarks {name} --write"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("align", ("text", "transform")),
        ("serving", ("serving-transform", "serving-fetch")),
        ("stores", ("serving-search",)),
    ],
)
def test_the_numbers_of_a_page_are_filled_in(page: str, names: tuple[str, ...]) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for name in names:
        section = text.split(f"<!-- {name} -->")[1].split(f"<!-- end {name} -->")[0]
        assert re.search(r"\d\.\d", section), f"run: python -m benchmarks {name} --write"
