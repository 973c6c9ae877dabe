"""What the pages on training claim, and what their tables say."""

from __future__ import annotations

import re

from tests.support.sentences import ROOT, Claim, by_first, number, table

RESULTS, TRAINING = "docs/results.md", "docs/training.md"
TOWERS, GRAPH = "docs/two-tower.md", "docs/graph.md"


def recall(data: str) -> dict[str, float]:
    return {m: number(r["Recall@20"]) for m, r in by_first(TRAINING, f"quality-{data}").items()}


def previous_and_independent() -> bool:
    gaps = []
    for data in ("movielens", "gowalla"):
        rows = recall(data)
        gaps.append(rows["Evergram, SOGram"] - rows["Evergram, SOGram, independent batch"])
    return 0 < gaps[0] < 0.003 and -0.003 < gaps[1] < 0


def last_batch_near_sogram() -> bool:
    return all(
        abs(recall(data)["Evergram, SOGram"] - value) < 0.005
        for data in ("movielens", "gowalla")
        for method, value in recall(data).items()
        if method.startswith("the batch's Gramian")
    )


def least_squares_are_faster() -> bool:
    return all(
        number(row["seconds"]) < number(rows["Evergram, SOGram"]["seconds"])
        for rows in (by_first(TRAINING, f"quality-{d}") for d in ("movielens", "gowalla"))
        for method, row in rows.items()
        if "ALS" in method
    )


def with_256_dims() -> bool:
    rows = recall("gowalla")
    return rows["Evergram, SOGram, 256-d"] >= rows["irspack, RP3beta, no embedding"]


def published_are_ahead() -> bool:
    rows = recall("gowalla")
    ours = rows["Evergram, SOGram, 256-d"]
    ahead = {m for m, v in rows.items() if "published" in m and v > ours}
    return ahead == {m for m in rows if "published" in m} - {"NGCF, published"}


def grows_with_the_catalogue() -> bool:
    """Whether the gain without the preconditioner at equal steps is as the page has it."""
    lines = (ROOT / "docs" / "reproduction.md").read_text().splitlines()
    rows = [line.split("|") for line in lines if "| without preconditioner |" in line]
    gains = {row[1].strip(): row[7].strip().removesuffix(" %").split(" ± ") for row in rows}
    small, large = ([float(part) for part in gains[n]] for n in ("10,000", "1,000,000"))
    return small[1] < small[0] < 1.5 and large[0] - large[1] > 33


def errors() -> dict[str, list[float]]:
    """The Gramian error of each estimator, by column: factorization and tower, 128 and 1,024."""
    return {
        n: [number(c) for c in list(r.values())[1:]]
        for n, r in by_first(TRAINING, "errors").items()
    }


def fixed_rates() -> dict[str, list[float]]:
    return {n: e for n, e in errors().items() if re.match(r"SOGram 0", n)}


def auto_is_near_the_best() -> bool:
    best = [min(column) for column in zip(*fixed_rates().values(), strict=True)]

    def near(row: list[float]) -> bool:
        return all(value <= 1.12 * least for value, least in zip(row, best, strict=True))

    return near(errors()["SOGram auto"]) and not any(map(near, fixed_rates().values()))


def slow_averages() -> bool:
    rows, none = errors(), errors()["sampled, uniform"]
    slow = rows["SOGram 0.01"], rows["SOGram 0.02"]
    return all(r[3] > none[3] and r[2] < none[2] for r in slow) and rows["SOGram 0.05"][3] < none[3]


def storm_and_sagram() -> bool:
    rows = errors()
    best = [min(rows, key=lambda n: rows[n][c]) for c in (2, 3)]
    stale = rows["SAGram 1/n"][3] > max(rows["storm auto"][3], rows["SAGram 1"][3])
    return best == ["storm auto", "SAGram 1"] and stale


def towers_want_faster_rates() -> bool:
    rows = fixed_rates()
    best = [float(min(rows, key=lambda n: rows[n][c]).split()[1]) for c in range(4)]
    return all(4 <= best[c + 2] / best[c] <= 5 for c in (0, 1))


def pairs_or_gramian() -> bool:
    rows = table(TRAINING, "crossover")
    cells = [number(v) for row in rows for k, v in row.items() if k != "batch"]
    return min(cells) >= 0.9 and 6 < max(cells) < 6.5


def bare_products() -> bool:
    row = table(TRAINING, "steps")[0]
    return number(row["factorization, alone"]) > 1.1 > 1.02 > number(list(row.values())[5])


def towers(data: str, variant: str) -> list[tuple[float, float]]:
    """Selection and test of a variant, by seed."""
    rows = [r for r in table(TOWERS, "towers") if (r["data"], r["variant"]) == (data, variant)]
    return [(number(r["selection"]), number(r["test"])) for r in rows]


def without_the_skip() -> bool:
    popularity = number(table(RESULTS, "movielens")[0]["popularity"])
    ((_, without),) = towers("movielens", "no way around the layers")
    ((_, slow),) = towers("movielens", "no way around the layers, SOGram 0.01")
    whole = towers("movielens", "factorization")[0][1]
    return without - popularity < whole - without and slow < without


def as_good_as_a_factorization() -> bool:
    gaps = {
        data: [
            (a[0] - b[0], a[1] - b[1])
            for a, b in zip(towers(data, "two towers"), towers(data, "factorization"), strict=True)
        ]
        for data in ("movielens", "gowalla")
    }
    every = [gap for each in gaps.values() for gap in each]
    return (
        all(abs(test) < 0.001 for _, test in every)
        and [round(test, 4) for _, test in gaps["movielens"]] == [-0.0002, -0.0002]
        and sorted(test > 0 for _, test in gaps["gowalla"]) == [False, True]
        and sum(selection > 0 for selection, _ in every) == 1
    )


def slow_sogram_lags() -> bool:
    slow, medium = (towers("movielens", f"SOGram, rate {r}")[0][1] for r in (0.01, 0.05))
    whole = towers("movielens", "two towers")[0][1]
    ((selection, test),) = towers("gowalla", "SOGram, rate 0.01")
    other = towers("gowalla", "two towers")[0]
    lags = slow < 0.9 * whole and 0.97 * whole < medium < whole
    return lags and selection < other[0] and test >= other[1]


def storm_does_not_lag() -> bool:
    return (
        abs(towers("movielens", "two towers")[0][1] - towers("movielens", "factorization")[0][1])
        < 0.001
    )


def faster_layers() -> bool:
    ((_, fast),) = towers("movielens", "layers at 0.001")
    rows = {r["variant"]: r for r in table(TOWERS, "towers") if r["data"] == "movielens"}
    bent = number(rows["layers at 0.001"]["non-linear"]) > number(rows["two towers"]["non-linear"])
    return abs(fast - towers("movielens", "two towers")[0][1]) < 0.003 and bent


def features_at_the_ids_rate() -> bool:
    ((selection, test),) = towers("movielens", "features at the ids' rate")
    one, two = towers("movielens", "two towers")
    seeds = max(abs(one[0] - two[0]), abs(one[1] - two[1]))
    gaps = one[0] - selection, test - one[1]
    return min(gaps) > 0 and max(gaps) < seeds


def without_the_preconditioner() -> bool:
    (without,) = towers("movielens", "no preconditioner")
    return all(a < b for a, b in zip(without, towers("movielens", "two towers")[0], strict=True))


def three_times_the_time() -> bool:
    rows = [r for r in table(TOWERS, "towers") if r["variant"] == "two towers"]
    return max(number(r["× factorization"]) for r in rows) <= 3


def more_pairs_a_step() -> bool:
    ratios = [
        number(r["batch 16384"]) / number(r["batch 2048"]) for r in table(GRAPH, "graph-steps")
    ]
    return max(ratios) <= 1.75


def graphs() -> dict[tuple[str, str], dict[str, float]]:
    rows = table(GRAPH, "graph-quality")[:-1]
    keys = ("Recall@20", "Recall@50", "CPU seconds")
    return {(r["encoder"], r["trained by"]): {k: number(r[k]) for k in keys} for r in rows}


def lightgcn_and_the_factorization() -> bool:
    rows, exact = graphs(), "penalty, exact in the step's pass"
    light, flat = rows["LightGCN, 3 layers", exact], rows["factorization", "penalty, SOGram"]
    near = all(abs(light[k] - flat[k]) < 0.01 for k in ("Recall@20", "Recall@50"))
    return near and 5 < light["CPU seconds"] / flat["CPU seconds"] < 7


def means_and_a_table() -> bool:
    rows = {(r["queries"], r["trained by"]): r for r in table(GRAPH, "query-means")}
    gaps = [
        number(rows["a table", way]["Recall@20"]) - number(rows["means", way]["Recall@20"])
        for way in ("softmax over all", "squared loss, penalty")
    ]
    return abs(gaps[0]) < 0.01 and gaps[1] > 0.05


def graphsage_by_its_losses() -> bool:
    rows, name = graphs(), "GraphSAGE, 2 layers"
    exact, bpr = rows[name, "penalty, exact in the step's pass"], rows[name, "BPR"]
    return all(exact[k] < bpr[k] for k in ("Recall@20", "Recall@50"))


def bounds(cell: str) -> tuple[float, float]:
    """Return the ends of "0.1 ± 0.01"."""
    mean, half = (float(part) for part in cell.split("±"))
    return mean - half, mean + half


def searched_losses_and_the_default() -> bool:
    rows = by_first(TRAINING, "losses")
    ahead = [rows[name] for name in ("huber", "squared_hinge", "logistic")]
    (default,) = (
        row
        for name, row in by_first(TRAINING, "defaults").items()
        if name.startswith("amazon-musical-instruments")
    )
    low, high = bounds(default["Recall@20, defaults"])
    written = f"({default['Recall@20, defaults']} on the same"
    return (
        written in (ROOT / TRAINING).read_text()
        and number(rows["squared"]["Recall@20"]) < low
        and all(low < number(row["Recall@20"]) < high for row in ahead)
        and all(bounds(row["/ squared"])[0] > 1 for row in ahead)
    )


def adaptive_sampling_is_not_told_from_linear() -> bool:
    reproduction, page = (ROOT / "docs/reproduction.md").read_text(), (ROOT / TRAINING).read_text()

    def first_row(name: str) -> list[str]:
        lines = (x for x in reproduction.splitlines() if x.startswith(f"| {name} |"))
        return [cell.strip() for cell in next(lines).split("|")[2:-1]]

    gain = first_row("adaptive sampling")[4]
    errors = [first_row(f"sampling, {name}")[0] for name in ("adaptive", "linear")]
    costs = reproduction.split("**CPU seconds of the whole training")[1].split("\n\n")[1]
    cells = dict(line.split("|")[1:3] for line in costs.splitlines())
    seconds = [number(cells[f" {name} sampling "].strip()) for name in ("adaptive", "linear")]
    low, high = bounds(gain.removesuffix("%"))
    (one, other) = map(bounds, errors)
    return (
        all(figure in " ".join(page.split()) for figure in (gain, " and ".join(errors)))
        and low < 0 < high
        and one[0] < other[1]
        and other[0] < one[1]
        and 1.8 < seconds[0] / seconds[1] < 2.2
    )


def square_is_below_popularity() -> bool:
    rows = by_first(TRAINING, "losses")
    square, floor = (bounds(rows[n]["Recall@20"]) for n in ("spherical, square", "popularity"))
    return square[1] < floor[0]


CLAIMS: list[Claim] = [
    (TRAINING, "What a smaller error is worth grows with the catalogue", grows_with_the_catalogue),
    (TRAINING, 'The searched "squared" is below the same loss', searched_losses_and_the_default),
    (
        TRAINING,
        "five seeds do not tell adaptive sampling from",
        adaptive_sampling_is_not_told_from_linear,
    ),
    (TRAINING, '"spherical, square" ends below popularity', square_is_below_popularity),
    (TRAINING, "SOGram that learns from the previous batch is within", previous_and_independent),
    (TRAINING, "the Gramian of the last batch is within 0.005", last_batch_near_sogram),
    (TRAINING, "Libraries for least squares are faster", least_squares_are_faster),
    (TRAINING, "with 256 they reach what neighbourhoods do", with_256_dims),
    (TRAINING, "The published models with 64 dims, except NGCF", published_are_ahead),
    (TRAINING, 'SOGram\'s "auto", the default, is within 12 %', auto_is_near_the_best),
    (TRAINING, "SOGram's slowest rates (0.01 and 0.02) are then worse", slow_averages),
    (TRAINING, "`storm`, which moves its average along", storm_and_sagram),
    (TRAINING, "Below that pairs save at most a tenth", pairs_or_gramian),
    (TRAINING, "with a tower they vanish", bare_products),
    (TOWERS, "the best fixed rate of a tower is four to five times", towers_want_faster_rates),
    (TOWERS, "a tower ends closer to popularity", without_the_skip),
    (TOWERS, "an f that starts at zero is as good as", as_good_as_a_factorization),
    (TOWERS, "The slower SOGram averages, the more it lags", slow_sogram_lags),
    (TOWERS, "`storm` at 0.2, with which", storm_does_not_lag),
    (TOWERS, 'Faster layers ("layers at 0.001") fit MovieLens', faster_layers),
    (TOWERS, "Features at the ids' rate are worse by selection", features_at_the_ids_rate),
    (TOWERS, "Without the preconditioner the tower ends lower", without_the_preconditioner),
    (TOWERS, "It is as good as the factorization, within 0.001", as_good_as_a_factorization),
    (TOWERS, "It takes up to three times the factorization's time", three_times_the_time),
    (GRAPH, "A pass is most of a step: eight times", more_pairs_a_step),
    (
        GRAPH,
        "LightGCN is as good as the factorization, within 0.01",
        lightgcn_and_the_factorization,
    ),
    (GRAPH, "By the softmax, means are as good as a table", means_and_a_table),
    (GRAPH, "GraphSAGE with that penalty is lower than with BPR", graphsage_by_its_losses),
]
