"""Running experiments, keeping their results, and what is listed and judged."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from reproduction.__main__ import main
from reproduction.catalogue import READY, REPRODUCED, find, listing
from reproduction.claims import Claim, chosen_elsewhere, judge
from reproduction.commands import Run, reproduce, reproduce_all
from reproduction.evidence import Evidence
from reproduction.experiment import Search
from reproduction.gramian import table2
from reproduction.intervals import holm, interval, separated
from reproduction.run import Job, jobs_of, run_all, settled
from scipy import stats
from tests.support.reproduction_results import map_result, result, runs_of

from evergram import Recipe
from evergram.errors import DataError
from evergram.training import Progress
from reproduction import evidence, results, run

ROOT = Path(__file__).parents[2]
ROOMS = {path.parent.name for path in (ROOT / "src" / "evergram").glob("*/__init__.py")}
# The tree of errors is public as a whole; docs and messages name it. The others are one function,
# which ends their sentences, and the table of data sets.
PUBLIC_FILES = {"evergram.errors", "evergram.did_you_mean"}


def private_imports(source: str) -> Iterator[str]:
    """Yield what a file imports of Evergram except the exports of the package and its rooms."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "evergram")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "evergram":
            module = node.module or ""
            parts = module.split(".")
            is_room = parts == ["evergram"] or (len(parts) == 2 and parts[1] in ROOMS)
            if module in PUBLIC_FILES:
                continue
            exports = set(importlib.import_module(module).__all__) if is_room else set()
            yield from (f"{module}.{a.name}" for a in node.names if a.name not in exports)


def test_the_reproduction_imports_public_names_only() -> None:
    # The comparison was a room of the package; the others are extensions of it.
    near = {"comparison", "loaders", "recipe.py", "pair_fit.py"}
    files = [p for p in (ROOT / "reproduction").rglob("*.py") if not near & set(p.parts[-2:])]
    assert {p: names for p in files if (names := [*private_imports(p.read_text())])} == {}
    private = "from evergram.training import fit_encoder, FitSettings"
    assert list(private_imports(private)) == ["evergram.training.FitSettings"]
    assert list(private_imports("def f():\n    import evergram.data")) == ["evergram.data"]


def test_an_interval_covers_the_mean_nineteen_times_in_twenty() -> None:
    draw = torch.Generator().manual_seed(0)
    samples = torch.randn(4000, 4, generator=draw, dtype=torch.float64) + 3
    bounds = [interval(row) for row in samples.tolist()]
    covered = sum(b is not None and b[0] < 3 < b[1] for b in bounds)
    assert covered / 4000 == pytest.approx(0.95, abs=0.012)


def test_several_means_are_separated_by_chance_once_in_twenty() -> None:
    """Of six samples without any effect: by their own intervals it is one time in four."""
    draw = torch.Generator().manual_seed(1)
    samples = torch.randn(1000, 6, 5, generator=draw, dtype=torch.float64)
    wrong = 0
    for row in samples.tolist():
        bounds = holm({str(name): values for name, values in enumerate(row)})
        wrong += any(low > 0 or high < 0 for low, high in bounds.values())
    assert wrong / 1000 == pytest.approx(0.05, abs=0.02)
    alone = sum(
        any(b is not None and (b[0] > 0 or b[1] < 0) for b in map(interval, row))
        for row in samples.tolist()
    )
    assert alone > 200


def test_holms_procedure_by_its_p_values() -> None:
    """The step-down rule as it is written with p-values, computed apart."""
    draw = torch.Generator().manual_seed(2)
    for row in (torch.randn(40, 4, 6, generator=draw, dtype=torch.float64) + 0.9).tolist():
        p_values = {n: float(stats.ttest_1samp(v, 0).pvalue) for n, v in enumerate(row)}
        rejected: set[int] = set()
        for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
            if p_values[name] > 0.05 / (len(row) - rank):
                break
            rejected.add(name)
        bounds = holm({str(n): v for n, v in enumerate(row)})
        assert {int(n) for n, (low, high) in bounds.items() if low > 0 or high < 0} == rejected
    samples = {"a": [1.0, 1.1, 0.9], "b": [-1.0, -1.1, -0.9], "c": [1.0, -1.0, 0.5]}
    assert separated(samples) == {"a": "better", "b": "worse", "c": "not separable"}


def test_a_choice_made_on_other_seeds_does_not_profit_from_chance() -> None:
    assert chosen_elsewhere({"a": [9.0, 0.0, 0.0], "b": [1.0, 1.0, 1.0]}) == [1.0, 0.0, 0.0]
    assert chosen_elsewhere({"a": [9.0], "b": [1.0]}) == [9.0]


def test_a_claim_that_results_cannot_judge_is_not_tested() -> None:
    runs = runs_of([result("a")])

    def verdict(margin: float, **reasons: Any) -> str:
        margins = [margin, margin + 0.1, margin - 0.1]
        claim = Claim("A is better.", "[G2] §1", "A less B", lambda _: margins, **reasons)
        return judge(claim, runs).verdict

    assert verdict(1.0, too_short=lambda _: "ten steps") == "confirmed"
    assert verdict(-1.0, too_short=lambda _: "ten steps") == "not tested"
    assert verdict(1.0, premise=lambda _: "below popularity") == "not tested"


def test_one_better_competitor_refutes_that_something_is_the_best() -> None:
    runs = runs_of([result("a")])
    for second, expected in (
        ([1.0, 1.1, 0.9], "confirmed"),
        ([0.1, -0.1, 0.05], "not separable"),
        ([-1.0, -1.1, -0.9], "refuted"),
    ):
        margins = {"b": [2.0, 2.1, 1.9], "c": second}
        claim = Claim("A is best.", "[G2] §1", "A less each", lambda _, m=margins: m)  # type: ignore[misc]
        judgement = judge(claim, runs)
        assert (judgement.verdict, judgement.nearest) == (expected, "c")


def test_the_verdict_follows_from_the_interval_of_what_was_measured() -> None:
    whole, half = runs_of([result("a")]), runs_of([result("a", 0), result("b", 1)])
    for runs, margins, verdict in [
        (whole, [1.0, 1.1, 0.9], "confirmed"),
        (whole, [-1.0, -1.1, -0.9], "refuted"),
        (whole, [1.0, -1.0, 0.5], "not separable"),
        (whole, [5.0, 5.0], "not separable"),
        (whole, [0.0, 0.0, 0.0], "not separable"),
        (half, [1.0, 1.1, 0.9], "not measured"),
        (None, [1.0, 1.1, 0.9], "not measured"),
    ]:
        claim = Claim("A is better.", "[G2] §1", "A less B", lambda _, found=margins: found)  # type: ignore[misc]
        judgement = judge(claim, runs)
        assert judgement.verdict == verdict
        assert judgement.as_json()["verdict"] == verdict


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    made = result("linear SOGram, α = 0.1", 3, map={"validation": [0.25, 0.5]})
    path = results.write(tmp_path, made)
    assert path == results.path_of(tmp_path, made.experiment, "small", made.label, 3)
    assert results.read(path) == made
    assert results.read_all(tmp_path, made.experiment, "small") == [made]
    assert results.read_all(tmp_path, made.experiment, "paper") == []


def test_what_is_half_written_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = result("a")

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        results.write(tmp_path, made)
    assert results.read_all(tmp_path, made.experiment, "small") == []
    assert list(tmp_path.rglob(".*.part"))


QUIET = Progress(quiet=True)
PRESET = table2.EXPERIMENT.presets["tiny"]
EXPERIMENT = replace(
    table2.EXPERIMENT, presets={"tiny": replace(PRESET, trainings=PRESET.trainings[:2])}
)


def test_a_run_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(EXPERIMENT, "tiny", [0])
    running = run_all(jobs, tmp_path, QUIET)
    first = next(running)
    running.close()  # killed after the first training
    trained: list[str] = []
    real = run.train

    def counted(job: Job, *rest: object) -> results.Result:
        trained.append(job.training.label)
        return real(job, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "train", counted)
    both = list(run_all(jobs, tmp_path, QUIET))
    assert trained == [jobs[1].training.label]
    assert both[0].series["map"]["validation"] == pytest.approx(
        first.series["map"]["validation"], rel=1e-5
    )
    kept = [
        results.path_of(tmp_path, job.experiment, job.preset, job.training.label, job.seed)
        for job in jobs
    ]
    assert list(run_all(jobs, tmp_path, QUIET)) == [results.read(path) for path in kept]
    assert len(trained) == 1


def test_selection_chooses_the_settings_of_all_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strengths = (1.0, 10.0, 100.0)
    searched = Search("a", {}, tuple({"task.penalty": strength} for strength in strengths))
    like = PRESET.trainings[0]
    one = replace(like, label="a", search=searched)
    # Takes over what was chosen for the other.
    settings = {**like.settings, "training.epochs": 1}
    alike = replace(like, label="b", settings=settings, search=searched)
    trained: list[tuple[str, int, float]] = []

    def made(job: Job, *rest: object) -> results.Result:
        strength = job.values["task"]["penalty"]
        trained.append((job.training.label, job.seed, strength))
        found = map_result(job.training.label, [0.1, 0.2 - abs(strength - 10) / 1000], job.seed)
        found = replace(found, experiment=job.experiment, preset=job.preset)
        return replace(found, key=job.key, settings=job.settings)

    monkeypatch.setattr(run, "train", made)
    jobs = [Job("a/b", "small", each, seed) for seed in (0, 1) for each in (one, alike)]
    assert settled(jobs[0], tmp_path) is None
    assert len(list(run_all(jobs, tmp_path, QUIET))) == 4
    trials = [(f"a, trial {n}", 1000, strength) for n, strength in enumerate(strengths, 1)]
    judged = [(label, seed, 10.0) for seed in (0, 1) for label in ("a", "b")]
    assert trained == [*trials, *judged]
    assert len(list(run_all(jobs, tmp_path, QUIET))) == 4
    assert len(trained) == 7  # kept
    # Trials are not results of the preset.
    assert {r.seed for r in results.read_all(tmp_path, "a/b", "small")} == {0, 1}


def counting_its_starts(
    recipe: Recipe, progress: Progress, device: str, work: Path
) -> dict[str, Any]:
    """A program that is killed the first time that it runs."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "starts").open("a") as file:
        file.write("x")
    starts = len((work / "starts").read_text())
    if starts == 1:
        raise DataError("killed")
    return {"starts": starts}


def test_a_program_finds_what_it_left_and_leaves_nothing_at_the_end(tmp_path: Path) -> None:
    training = replace(PRESET.trainings[0], readings=(), program=counting_its_starts)
    job = Job("a/b", "tiny", training, 0)
    with pytest.raises(DataError, match="killed"):
        list(run_all([job], tmp_path, QUIET))
    work = run.work_folder(job, tmp_path)
    assert (work / "starts").is_file()
    # Other settings are another folder, and what is half-done is no result.
    assert run.work_folder(replace(job, seed=1), tmp_path) != work
    changed = replace(training, settings={**training.settings, "task.penalty": 3.0})
    assert run.work_folder(replace(job, training=changed), tmp_path) != work
    assert results.read_all(tmp_path, "a/b", "tiny") == []
    (made,) = run_all([job], tmp_path, QUIET)
    assert made.series == {"starts": 2}
    assert not work.exists()
    work.mkdir()  # as if it had been killed between the result and this
    list(run_all([job], tmp_path, QUIET))
    assert not work.exists()


# How many figures and tables each paper has.
PAPERS = {"G1": (8, 3), "G2": (9, 5), "BC": (5, 3)}
# Listed under a number of the other paper, or not a result: [BC] Table 1 names the methods.
NOT_RESULTS = {("BC", "Table 1")}


def test_every_table_and_figure_has_its_row(tmp_path: Path) -> None:
    missing = set()
    for paper, (figures, tables) in PAPERS.items():
        missing |= {(paper, f"Figure {i + 1}") for i in range(figures)}
        missing |= {(paper, f"Table {i + 1}") for i in range(tables)}
        for row in listing(tmp_path):
            text = row.shown.get(paper, "")
            for kind, numbers in re.findall(r"(Figure|Table)s? (\d+\w?(?:, \d+\w?)*)", text):
                missing -= {(paper, f"{kind} {n.rstrip('abcd')}") for n in numbers.split(", ")}
    assert missing == NOT_RESULTS


def test_the_state_is_what_the_folder_has(tmp_path: Path) -> None:
    def states() -> dict[str, tuple[str, list[int]]]:
        return {row.name: (row.state, row.seeds) for row in listing(tmp_path)}

    assert states()["gramian/penalty"] == (READY, [])
    jobs = jobs_of(find("gramian/penalty"), "small", [0])
    for job in jobs:  # of other settings
        results.write(tmp_path, replace(result(job.training.label), experiment=job.experiment))
    for job in jobs:
        made = replace(result(job.training.label), experiment=job.experiment, key=job.key)
        assert states()["gramian/penalty"] == (READY, [])  # until every training is there
        results.write(tmp_path, made)
    assert states()["gramian/penalty"] == (f"{REPRODUCED}small", [0])


@pytest.mark.long
def test_a_run_returns_tables_verdicts_and_where_its_results_are(tmp_path: Path) -> None:
    run = Run("gramian/movielens", "tiny", seeds=1, out=tmp_path)
    outcome = reproduce(run, QUIET)
    assert outcome.seeds == [0]
    assert len(list(outcome.folder.glob("*.json"))) == 4
    values = outcome.as_json()
    assert [claim["verdict"] for claim in values["claims"]] == ["not tested"] * 2
    assert values["tables"][0]["rows"]
    assert outcome.sentences[0].startswith("not tested: The best validation MAP")
    more = reproduce(Run("gramian/movielens", "tiny", seeds=2, out=tmp_path), QUIET)
    assert more.seeds == [0, 1]


def test_results_count_as_missing_once_the_tiny_preset_gives_other_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = find("gramian/movielens")
    job = jobs_of(experiment, "small", [0])[0]
    figures = {"sampling: map.last": 0.25}

    def now(**changed: float) -> None:
        made = Evidence("0123456789ab", {**figures, **changed})
        monkeypatch.setattr(evidence, "measured", lambda _: made)

    now()
    assert evidence.state(experiment, "small", tmp_path) == "unknown"
    evidence.renew(experiment, "small", tmp_path)
    key = evidence.key_of(tmp_path, experiment.name, "small")
    kept = replace(result(job.training.label), experiment=job.experiment, key=job.key, evidence=key)
    results.write(tmp_path, kept)
    assert run.kept_result(job, tmp_path) == kept
    now(**{"sampling: map.last": 0.2500001})  # another order of sums
    evidence.renew(experiment, "small", tmp_path)
    assert evidence.state(experiment, "small", tmp_path) == "current"
    assert run.kept_result(job, tmp_path) == kept
    now(**{"sampling: map.last": 0.26})
    assert evidence.state(experiment, "small", tmp_path) == "stale"
    evidence.renew(experiment, "small", tmp_path)
    assert evidence.state(experiment, "small", tmp_path) == "current"
    assert run.kept_result(job, tmp_path) is None


@pytest.mark.long
def test_the_tiny_preset_gives_the_same_figures_twice(tmp_path: Path) -> None:
    """Without which everything would be stale at once."""
    experiment = find("gramian/movielens")
    first = evidence.measured(experiment)
    evidence._measured.cache_clear()
    assert first.agrees(evidence.measured(experiment))
    assert not any("seconds" in name for name in first.figures)
    assert any("validation" in name for name in first.figures)


def test_a_preset_that_no_experiment_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'smal'.*'small'"):
        reproduce_all(Run("all", "smal", out=tmp_path), Progress(quiet=True))


def test_without_a_name_every_table_and_figure_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["experiments"]}
    assert {"gramian/table2", "bc/table3", "bc/figure5"} <= set(rows)
    assert rows["bc/figure1"]["state"].startswith("a drawing")
    assert main(["--out", str(tmp_path)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in listed} == set(rows)
    assert any(line.startswith("gramian/table2 ") and "not run yet" in line for line in listed)
    assert main(["gramian/tabel2"]) == 2
    assert "gramian/table2" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_prints_its_tables_and_verdicts_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["gramian/gramian-error", "--preset", "tiny", "--out", str(tmp_path)]
    assert main([*options, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["seeds"] == [0]
    assert {claim["verdict"] for claim in first["claims"]} == {"not separable"}
    assert first["tables"][0]["rows"]
    assert main([*options, "--seeds", "2"]) == 0
    again = capsys.readouterr()
    assert "kept" in again.err.splitlines()[0]
    assert "not separable: Both variants of SAGram" in again.out
    assert main(["report", "--out", str(tmp_path)]) == 0
    # Tiny figures are no results of the small preset.
    assert "Not run yet" in (tmp_path / "reproduction.md").read_text()
