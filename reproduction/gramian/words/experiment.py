"""Word similarity and analogies by the papers' objective. [G1] §1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from reproduction.claims import Claim
from reproduction.experiment import Experiment, Line, Panel, Preset, Runs, Table, Training
from reproduction.gramian import methods
from reproduction.gramian.words.judgements import KINDS, PAIRS
from reproduction.gramian.words.programs import Floor, Objective, PpmiSvd, Text
from reproduction.intervals import shown
from reproduction.results import Result

SOGRAM, SAMPLING, ALONE = "SOGram", "sampling", "no penalty"
PEER, FLOOR = "PPMI and SVD", "random vectors"
TRAINED = (SOGRAM, SAMPLING, ALONE)
RATE = 0.1
Read = Callable[[Result], float]


def trainings(
    recipe: Path, text: Text, rows: int, penalty: dict[str, Any], peer: dict[str, float]
) -> tuple[Training, ...]:
    """Return the objective with both estimators and without a penalty, the peer and the floor.

    Args:
        rows: interactions of the corpus, about.
        penalty: settings of the penalty by "table.key".
        peer: those of `PpmiSvd`.
    """
    vectors = Objective(text, rows, "sum")
    tables = {SOGRAM: methods.sogram(RATE), SAMPLING: methods.sampling()}
    made = [
        Training(label, recipe, methods.in_recipe(table) | penalty, program=vectors)
        for label, table in tables.items()
    ]
    without = {"task.penalty": 0.0}
    dim = int(peer["dim"])
    return (
        *made,
        Training(ALONE, recipe, without, program=vectors),
        Training(
            PEER,
            recipe,
            without,
            program=PpmiSvd(text, dim, peer["smoothing"], peer["shift"], peer["power"]),
        ),
        Training(FLOOR, recipe, without, program=Floor(text, dim)),
    )


def mean_rho(result: Result) -> float:
    """Return Spearman's correlation, the mean of the sets, over the half that is reported."""
    return float(result.series["reported"]["mean_rho"])


def accuracy(result: Result) -> float:
    """Return the reported analogies that are answered, in %."""
    return 100 * float(result.series["reported"]["accuracy"])


def _rho(name: str) -> Read:
    return lambda r: float(r.series["reported"]["similarity"][name]["rho"])


def _answered(kind: str) -> Read:
    return lambda r: 100 * float(r.series["reported"]["analogies"][kind]["accuracy"])


def tables(runs: Runs) -> list[Table]:
    if not runs.seeds:
        return []
    first = runs.all[0].series["reported"]
    sets, kinds = first["similarity"], first["analogies"]
    covered = [
        ["pairs", *(f"{sets[n]['pairs']:,} of {sets[n]['of']:,}" for n in PAIRS), ""],
        ["questions", *(_share(kinds[k]["questions"], kinds[k]["of"]) for k in KINDS), ""],
    ]
    rows = [
        [label, *(shown(runs.values(label, read), 3) for read in (*map(_rho, PAIRS), mean_rho))]
        for label in runs.labels
    ]
    values = by_frequency(runs.of(FLOOR)[0])  # of the counts alone, whatever the seed
    rows.append(["frequency of both words", *(f"{v:.3f}" for v in (*values, fmean(values)))])
    answered = [
        [
            label,
            *(shown(runs.values(label, read), 1) for read in (*map(_answered, KINDS), accuracy)),
        ]
        for label in runs.labels
    ]
    return [
        Table(
            "Word similarity: Spearman's correlation with people's judgements",
            ["", *PAIRS, "mean"],
            [*rows, covered[0]],
        ),
        Table(
            "Google's analogies: % answered by 3CosAdd among all words of the vocabulary",
            ["", *KINDS, "all"],
            [*answered, covered[1]],
        ),
    ]


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole:.0f} %)"


def panels(runs: Runs) -> list[Panel]:
    measures: dict[str, tuple[str, Read, float]] = {
        "mean_rho": ("Spearman's correlation, mean of three sets", mean_rho, 1.0),
        "accuracy": ("analogies answered, %", accuracy, 100.0),
    }
    return [
        Panel(
            title.partition(",")[0],
            "epoch",
            title,
            [
                *(_curve(runs, label, name, factor) for label in TRAINED),
                *(_level(runs, label, read) for label in (PEER, FLOOR)),
            ],
        )
        for name, (title, read, factor) in measures.items()
        if runs.seeds
    ]


def _curve(runs: Runs, label: str, name: str, factor: float) -> Line:
    curves = [r.series["curve"] for r in runs.of(label) if r.seed in runs.seeds]
    values = [[factor * v for v in curve[name]] for curve in curves]
    return Line(label, curves[0]["epoch"], values, dashed=label != SOGRAM)


def _level(runs: Runs, label: str, read: Read) -> Line:
    epochs = runs.of(SOGRAM)[0].series["curve"]["epoch"]
    ends = [epochs[0], epochs[-1]]
    return Line(label, ends, [[v, v] for v in runs.values(label, read)], dashed=True)


def _less(runs: Runs, read: Read, other: str, of_other: Read | None = None) -> Sequence[float]:
    """Return how much more SOGram has than another, for each seed.

    Args:
        of_other: reads the other's number, where it is not the same.
    """
    pairs = zip(runs.values(SOGRAM, read), runs.values(other, of_other or read), strict=True)
    return [one - two for one, two in pairs]


def by_frequency(result: Result) -> list[float]:
    """Return the correlation of each set that the floor has by the words' frequency."""
    return [float(result.series["frequency"][name]["rho"]) for name in PAIRS]


def best_floor(result: Result) -> float:
    """Return the mean correlation of random vectors or of frequency, whichever is higher."""
    return max(mean_rho(result), fmean(by_frequency(result)))


def above_floor(runs: Runs) -> list[float]:
    """How far SOGram's correlation is above what the better floor has."""
    return list(_less(runs, mean_rho, FLOOR, best_floor))


SMALLER = (
    "A batch draws 1,024 words of a vocabulary of 15,000, so that sampling estimates well "
    "here; the papers' batches are at most 1.2 % of their pages."
)
CLAIMS = (
    Claim(
        "The objective learns similarity functions in natural language, from context words.",
        "[G1] §1",
        "mean of Spearman's correlations with people's judgements, less that of the better floor "
        "(random vectors; frequency)",
        above_floor,
    ),
    Claim(
        "Taking into account unobserved pairs improves embeddings in word analogy tasks.",
        "[G1] §1",
        "analogies answered with the penalty less without it, % points",
        lambda runs: _less(runs, accuracy, ALONE),
    ),
    Claim(
        "SOGram's embeddings are better than sampling's (here: analogies).",
        "[G1] §4.3",
        "analogies answered, SOGram less sampling, % points",
        lambda runs: _less(runs, accuracy, SAMPLING),
        SMALLER,
    ),
    Claim(
        "SOGram's embeddings are better than sampling's (here: word similarity).",
        "[G1] §4.3",
        "mean of Spearman's correlations, SOGram less sampling",
        lambda runs: _less(runs, mean_rho, SAMPLING),
        SMALLER,
    ),
)
TINY = Text("", vocabulary=200, window=8, threshold=0.0)
SMALL = Text("wikispeedia", vocabulary=15_000, window=5, threshold=1e-5)
PAPER = Text("wikipedia-text", vocabulary=100_000, window=5, threshold=1e-5)
# λ, the measure, rates, readout and the peer's settings were chosen by the half of the judgements
# that is not reported.
PENALTY = {
    "task.penalty": 10.0,
    "task.query_measure": 0.75,
    "task.candidate_measure": 0.75,
    "training.precondition": 0.0,
}
PEER_SETTINGS = {"smoothing": 0.75, "shift": 1.0, "power": 0.5}
SMALL_NOTE = (
    "The text of Wikipedia for Schools, 14 million words, of which the 15,000 most frequent; "
    "windows of five words to either side; words that make more than 1e-5 of the text thinned "
    "out. The loss of observed pairs has no weights, so pairs are repeated in proportion to "
    "their counts. λ = 10, p ∝ count^0.75, D = 64, batches of 1,024, Adagrad, two epochs, "
    "after which the curves still rise. PPMI has the same counts and dims, context words "
    "smoothed by 0.75, and √Σ."
)
PAPER_NOTE = (
    "All of English Wikipedia as text in wikipedia-text/*.txt (.gz, .bz2, .xz), a line a "
    "paragraph, 100,000 words, D = 256; its words are held in memory while they are counted. "
    "Never run."
)
EXPERIMENT = Experiment(
    "gramian/words",
    {"G1": "§1"},
    "Word similarity and analogies",
    "Words are queries and the words near them candidates; the best score of a pair is a logistic "
    "function of its pointwise mutual information (docs/method.md). A word's vector is the sum of "
    "its own and of that as a context word. The papers name this use and have not run it. Settings "
    "were chosen by one half of people's judgements, drawn by a hash; all figures here are of the "
    "other half.",
    {
        "tiny": Preset(
            trainings(
                methods.RECIPES / "words-tiny.toml",
                TINY,
                20_000,
                PENALTY | {"task.penalty": 1.0},
                {"dim": 16, "smoothing": 1.0, "shift": 1.0, "power": 0.5},
            ),
            methods.TINY_NOTE,
        ),
        "small": Preset(
            trainings(
                methods.RECIPES / "words-small.toml",
                SMALL,
                3_000_000,
                PENALTY,
                {"dim": 64, **PEER_SETTINGS},
            ),
            SMALL_NOTE,
            3,
        ),
        "paper": Preset(
            trainings(
                methods.RECIPES / "words-paper.toml",
                PAPER,
                300_000_000,
                PENALTY,
                {"dim": 256, **PEER_SETTINGS},
            ),
            PAPER_NOTE,
        ),
    },
    tables,
    panels,
    CLAIMS,
)
