"""An upgrade that knows some of its consumers, beside the same upgrade that knows none.

Version 0 is a factorization of the first 60 % of MovieLens, without a tenth of the pairs, which are
held out at random to test a model's own task. It has consumers (`consumer_teams`), and the upgrade
knows one half of those of the five kinds of consumer tasks. Dims and μ were chosen on seed 100.

Results are kept in build/known-consumers, so that an interrupted run resumes; remove the folder to
measure anew.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import torch
from reproduction.recipe import PaperRecipe

from benchmarks import gowalla
from benchmarks.consumer_teams import GROUPS, Teams, TeamSettings, Vectors
from benchmarks.defaults import STUDENT
from evergram.data.corpus import Corpus
from evergram.data.synthetic import generate
from evergram.encoders.features import SIDES
from evergram.lineage.lineage import Lineage
from evergram.releasing.past_versions import known_vectors
from evergram.releasing.upgrade import train, upgrade
from evergram.training.checkpoint import load_encoder
from evergram.training.corpora import load_corpus, split_for
from evergram.training.recipe import Recipe

SEEDS = range(20)
TIMES = (0.6, 0.75, 0.9, 1.0)
MUS = (0.0, 0.5, 0.9)
SETTINGS = [
    "training.epochs=8", "training.patience=0", "training.evaluate_every=8",
    "training.batch_size=4096", "upgrade.alone=false", "upgrade.rows=4096",
]  # fmt: skip


@dataclass(frozen=True)
class Regime:
    """What version 1 is.

    Args:
        dims: of versions 0 and 1.
        seen: the share of the interactions that version 1 has seen.
        settings: of its upgrade.
        mus: the values of μ, 0 first.
    """

    dims: tuple[int, int]
    seen: float = TIMES[0]
    settings: tuple[str, ...] = ()
    mus: tuple[float, ...] = MUS


GRADIENT = ("upgrade.method=bc-aligner",)
REGIMES = {
    "narrower, 12 dims": Regime((32, 12)),
    "wider, 40 dims": Regime((32, 40), mus=MUS[:2]),
    # As the recipes of Table 3 have it. By default a twentieth of the objects is never aligned.
    "wider, 1 % held out": Regime((32, 40), settings=("upgrade.held_out=0.01",), mus=MUS[:2]),
    "wider, λ = 2": Regime((32, 40), settings=("upgrade.weight=2.0",), mus=MUS[:2]),
}
KEPT = gowalla.ROOT / "build" / "known-consumers"
TINY_REGIMES = {"wider": Regime((4, 5), TIMES[1]), "narrower": Regime((4, 2), settings=GRADIENT)}


@dataclass(frozen=True)
class Setting:
    """What a trial is made of.

    Args:
        corpus: all interactions.
        recipe: its split is at random; `settings` are set in it.
    """

    corpus: Corpus
    recipe: Path
    settings: Sequence[str]
    teams: TeamSettings
    regimes: Mapping[str, Regime]


@dataclass(frozen=True)
class Results:
    """By regime and μ, one value a seed of each measure."""

    metric: str
    values: dict[tuple[str, float], dict[str, list[float]]] = field(default_factory=dict)

    def add(self, regime: str, mu: float, measured: Mapping[str, float]) -> None:
        row = self.values.setdefault((regime, mu), {})
        for name, value in measured.items():
            row.setdefault(name, []).append(value)


def measure() -> Results:
    path = gowalla.ROOT / "recipes" / "movielens.toml"
    corpus = load_corpus(PaperRecipe.load(path))
    return results(Setting(corpus, path, SETTINGS, TeamSettings("genres"), REGIMES), SEEDS, KEPT)


def tiny() -> Results:
    corpus = generate(queries=200, candidates=100, interactions=6000).corpus
    settings = [
        "task.penalty=5.0", "task.l2=0.1", "training.epochs=2", "training.batch_size=512",
        "training.table_rate=0.05", "upgrade.alone=false", "split.share=0.2",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.toml"
        path.write_text('[data]\nkind = "python"\n')
        teams = TeamSettings("tags", others=2, hidden=8, epochs=2)
        setting = Setting(corpus, path, settings, teams, TINY_REGIMES)
        return results(setting, range(2), Path(folder))


def results(setting: Setting, seeds: Sequence[int], kept: Path) -> Results:
    """Run every regime and μ that is not kept, for each seed; version 0 and its consumers are the
    seed's own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    kept.mkdir(parents=True, exist_ok=True)
    collected = Results(PaperRecipe.load(setting.recipe, setting.settings).training.metric)
    arms = [(name, mu) for name, regime in setting.regimes.items() for mu in regime.mus]
    for seed in seeds:
        path = kept / f"{seed}.json"
        done = json.loads(path.read_text()) if path.exists() else []
        by_arm = {(name, mu): measured for name, mu, measured in done}
        missing = [arm for arm in arms if arm not in by_arm]
        if missing:
            trial = Trial(setting, seed)
            by_arm |= {(n, mu): trial.upgraded(setting.regimes[n], mu) for n, mu in missing}
            path.write_text(json.dumps([[*arm, row] for arm, row in by_arm.items()], indent=1))
        for arm in arms:
            collected.add(*arm, by_arm[arm])
    torch.set_num_threads(threads)
    return collected


class Trial:
    """One seed: its split, its version 0, and the teams that fitted their classifiers to that."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self.seed = setting, seed
        dim = next(iter(setting.regimes.values())).dims[0]
        recipe, corpus = self.recipe([f"model.dim={dim}"]), self._corpus(TIMES[0])
        self.training = split_for(recipe, corpus, 0).training
        self.first = train(recipe, corpus, progress=False)
        with tempfile.TemporaryDirectory() as folder:
            self.past = known_vectors(load_encoder(self._lineage(folder), 0), self.training)
        self.teams = Teams(setting.teams, setting.corpus, TIMES, self.training, self.past, seed)

    def recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        # Another name is another salt: each seed holds out other pairs.
        own = [f'name="known-{self.seed}"', f"seed={self.seed}"]
        return PaperRecipe.load(self.setting.recipe, [*self.setting.settings, *own, *overrides])

    def upgraded(self, regime: Regime, mu: float) -> dict[str, float]:
        """Return what an upgrade that gives known consumers the weight μ leaves of version 0."""
        own = [f"model.dim={list(regime.dims)}", f"upgrade.consumer_weight={mu}"]
        recipe, corpus = self.recipe([*own, *regime.settings]), self._corpus(regime.seen)
        consumers = self.teams.known() if mu else []
        with tempfile.TemporaryDirectory() as folder:
            lineage = self._lineage(folder)
            made = upgrade(
                recipe, lineage, corpus, progress=False, readings=False, consumers=consumers
            )
            lineage.publish(made)
            new, _ = known_vectors(load_encoder(lineage, 1), self.training)
            read = {side: lineage.chain.apply(new[side], 1, 0) for side in SIDES}
        scores = {group: self.teams.scores(group, read) for group in GROUPS}
        named = {f"{name}, {group}": s[name] for group, s in scores.items() for name in s}
        intended = made.metrics["metrics"]["model"][recipe.training.metric]
        return {"intended": intended, "error": self._distance(read), **named}

    def _corpus(self, share: float) -> Corpus:
        corpus = self.setting.corpus
        return corpus.restrict(torch.arange(round(share * len(corpus))))

    def _lineage(self, folder: str) -> Lineage:
        lineage = Lineage.create(Path(folder) / "lineage", self.recipe().name)
        lineage.publish(self.first)
        return lineage

    def _distance(self, read: Vectors) -> float:
        """Return metric (3) of version 1, the mean ‖z̃_0 − z_0‖₂."""
        past, known = self.past
        parts = [(read[s][known[s]] - past[s][known[s]]).norm(dim=1) for s in SIDES]
        return float(torch.cat(parts).double().mean())


def table(results: Results) -> str:
    """Return what each μ changes, next to the same upgrade with μ = 0."""
    lines = [
        f"| version 1 | μ | {results.metric}, change, % | (2) seen, change | (2) unseen, change "
        "| (2) other, change | scores of seen move by: μ = 0, μ |",
        "|" + "---|" * 7,
    ]
    for (regime, mu), row in results.values.items():
        if not mu:
            continue
        base = results.values[regime, 0.0]
        pairs = zip(base["intended"], row["intended"], strict=True)
        cells = [regime, f"{mu:g}", _shown([100 * (b - a) / a for a, b in pairs])]
        for group in GROUPS:
            pairs = zip(base[f"auc, {group}"], row[f"auc, {group}"], strict=True)
            cells.append(_shown([b - a for a, b in pairs]))
        cells.append(", ".join(f"{mean(of['moved, seen']):.3f}" for of in (base, row)))
        lines.append(f"| {' | '.join(cells)} |")
    seeds = len(row["intended"])
    lines += ["", f"± is half of the 95 % interval of the mean paired change over {seeds} seeds."]
    return "\n".join(lines)


def _shown(values: Sequence[float]) -> str:
    half = STUDENT[len(values)] * stdev(values) / sqrt(len(values))
    return f"{mean(values):+.2f} ± {half:.2f}"
