"""The program of a comparison: what it returns, and that it goes on where it was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reproduction.bc.comparison import closed_form_distances, compare_methods, sizes
from reproduction.bc.methods import TINY

from evergram import Lineage, Recipe, load_corpus
from evergram.errors import TrainingError
from evergram.releasing.comparison import compare as compare_module
from evergram.training import Progress

QUIET = Progress(quiet=True)
METHODS = ["keep-all", "fix-m0", "joint-notrans", "bc-aligner", "evergram"]


def recipe(*more: str, seed: int = 3) -> Recipe:
    return Recipe.load(TINY, [f"seed={seed}", f"compare.methods={METHODS}", *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The comparison of one seed with a sweep, and its folder."""
    folder = tmp_path_factory.mktemp("comparison")
    swept = recipe("compare.lambdas=[1, 16]")
    return compare_methods(swept, QUIET, "cpu", folder)["comparison"], folder


@pytest.mark.long
def test_every_figure_of_the_paper_is_there(made: tuple[dict[str, Any], Path]) -> None:
    measured, _ = made
    assert list(measured["methods"]) == METHODS
    keep = measured["methods"]["keep-all"]
    assert (keep["intended"], keep["unintended"], keep["total"], keep["error"]) == (0, 0, 0, 0)
    aligner = measured["methods"]["bc-aligner"]
    assert aligner["total"] == pytest.approx(aligner["intended"] + aligner["unintended"])
    assert aligner["error"] == pytest.approx(sum(aligner["over_time"]["error"].values()) / 3)
    assert set(aligner["by_task"]["activity"]) == {"2"}
    assert list(measured["queries"]) == ["0", "1", "2"]
    assert min(measured["queries"].values()) > 20
    assert measured["sizes"]["interactions"] == 6000


@pytest.mark.long
def test_the_sweep_has_the_method_itself_at_its_own_strength(
    made: tuple[dict[str, Any], Path],
) -> None:
    measured, _ = made
    assert set(measured["sweep"]) == {"joint-notrans", "joint-lin-sloss", "bc-aligner", "evergram"}
    rows = measured["sweep"]["bc-aligner"]
    assert list(rows) == ["1", "16"]
    assert rows["16"]["error"] == measured["methods"]["bc-aligner"]["error"]
    assert rows["1"]["error"] != rows["16"]["error"]


@pytest.mark.long
def test_every_model_that_was_trained_is_counted(made: tuple[dict[str, Any], Path]) -> None:
    trained = made[0]["trained"]
    assert list(trained["keep-all"]) == ["0", "1", "2"]
    assert trained["fix-m0"] == {}
    assert set(trained["bc-aligner-lambda-1"]) == {"1", "2"}
    assert trained["bc-aligner"]["1"]["share_of_passes"] == pytest.approx(2 / 500)


@pytest.mark.long
def test_both_losses_have_one_closed_form(made: tuple[dict[str, Any], Path]) -> None:
    measured, folder = made
    assert list(measured["closed_forms"]) == ["2"]
    assert 0 <= measured["closed_forms"]["2"] < 1e-9
    lineage = Lineage.open(folder / "comparison" / "seed-3" / "keep-all")
    again = closed_form_distances(recipe(), load_corpus(recipe()), lineage)
    assert again == measured["closed_forms"]


@pytest.mark.long
def test_an_interrupted_comparison_goes_on_in_its_folder(
    made: tuple[dict[str, Any], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = compare_module.run_version, [0]

    def interrupted(*rest: Any) -> Any:
        count[0] += 1
        if count[0] == 4:
            raise TrainingError("killed")
        return real(*rest)

    swept = recipe("compare.lambdas=[1, 16]")
    monkeypatch.setattr(compare_module, "run_version", interrupted)
    with pytest.raises(TrainingError, match="killed"):
        compare_methods(swept, QUIET, "cpu", tmp_path)
    again = compare_methods(swept, QUIET, "cpu", tmp_path)["comparison"]
    # Two versions of each run, and the one that was killed.
    assert count[0] == 2 * len(again["trained"]) + 1
    assert again == made[0]


def test_sizes_count_the_keys_that_candidates_have() -> None:
    few = load_corpus(recipe()).restrict(torch.arange(5))
    measured = sizes(few)
    assert measured["interactions"] == 5
    assert measured["candidates"] == len(few.candidates) <= 5
    groups = few.candidates.features["group"].indices.tolist()
    assert measured["keys"]["group"] == len(set(groups)) < 10
