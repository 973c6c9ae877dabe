"""What the README and the pages on upgrades claim, and what their tables say."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from tests.support.sentences import ROOT, Claim, by_first, number, table

README, COMPARE, UPGRADING = "README.md", "docs/compare.md", "docs/upgrading.md"
RESULTS = "docs/results.md"
REPRODUCTION = "docs/reproduction.md"
MIGRATE = "docs/migrate.md"


def alignment_gains() -> bool:
    """Whether (2) of every method that aligns is above 0."""
    rows = by_first(COMPARE, "table3")
    aligned = [
        r for name, r in rows.items() if name.startswith(("Post", "post", "Joint", "BC", "ever"))
    ]
    return len(aligned) == 7 and all(number(row["(2) %"]) > 0 for row in aligned)


def smaller_with_graphsage() -> bool:
    """Whether the error is smaller than BC-Aligner's by more than the interval on Musical
    Instruments alone, the corpus with GraphSAGE."""
    lines = (ROOT / REPRODUCTION).read_text().splitlines()
    start = "| evergram has a smaller error than BC-Aligner. |"
    row = next(line for line in lines if line.startswith(start) and line.count("±") == 3)
    margins = [change(cell) for cell in row.split("|")[2:5]]
    return [value > half for value, half in margins] == [False, False, True]


def most_of_the_error() -> bool:
    rows = {n: number(r["mean"]) for n, r in by_first(COMPARE, "alignment-objects").items()}
    return rows["bc-aligner, a batch's pairs"] > 2 * rows["bc-aligner, all objects (the paper)"]


def candidates_hardly_differ() -> bool:
    rows = [[number(c) for c in list(r.values())[1:]] for r in table(UPGRADING, "candidates")[1:]]
    spans = [max(column) - min(column) for column in zip(*rows, strict=True)]
    plain, solved = rows[0], rows[1]
    free = solved[0] >= plain[0] and solved[1] >= plain[1] and solved[2:] <= plain[2:]
    return max(spans[:2]) < 0.00301 and max(spans[2:]) < 0.01401 and free


def history_costs_nothing() -> bool:
    rows = [[number(c) for c in list(r.values())[1:]] for r in table(UPGRADING, "alignment")]
    return all(long <= 1.1 * short for short, long in rows)


def the_chain_keeps_consumers() -> bool:
    rows = table(README, "demo")
    first = number(rows[0]["consumer AUC, chain"])
    return all(abs(number(r["consumer AUC, chain"]) - first) < 0.01 for r in rows)


def raw_is_chance() -> bool:
    return all(number(r["consumer AUC, raw"]) < 0.6 for r in table(README, "demo")[1:])


def as_table_3_has_it() -> bool:
    row = by_first(COMPARE, "table3")["evergram (ours)"]
    return (row["(1) %"], row["(2) %"]) == ("-4.65 ± 3.05", "13.12 ± 1.24")


def own_queries() -> bool:
    rows = table(RESULTS, "movielens")
    raw, chain, v0 = (
        fmean(number(r[f"{name}"]) for r in rows)
        for name in ("own queries × v1, raw", "own queries × v1, chain", "v0 itself")
    )
    return raw < 0.1 * v0 and abs(chain - v0) < 0.005


def raw_on_both_sides() -> bool:
    rows = table(RESULTS, "movielens")
    return all(number(r["v1 raw on both sides"]) > 0.9 * number(r["v0 itself"]) for r in rows)


def below_theirs_or_equal() -> bool:
    """Of ours with all four: the errors of both versions at each seed, over theirs."""
    rows = list(table(COMPARE, "their-code"))
    theirs, ours = rows[0::3], rows[2::3]
    ratios = [
        [number(a[v]) / number(b[v]) for v in ("version 1", "version 2")]
        for a, b in zip(ours, theirs, strict=True)
    ]
    return max(ratios[0]) < 0.99 and all(abs(r - 1) < 0.01 for r in ratios[1])


def their_start_lowers_most() -> bool:
    changes = {
        name: number(row["change"])
        for name, row in by_first(COMPARE, "their-code", 1).items()
        if row["change"] and not name.startswith(("their code", "`model.scale`", "ours"))
    }
    return min(changes, key=lambda name: changes[name]) == "W starts uniform"


NARROWER, WIDER = "narrower, 12 dims", ("wider, 40 dims", "wider, 1 % held out")


def known_consumers() -> dict[tuple[str, str], Mapping[str, str]]:
    """The rows of the table, by what version 1 is and μ."""
    rows = table(UPGRADING, "known-consumers")
    return {(row["version 1"], row["μ"]): row for row in rows}


def change(cell: str) -> tuple[float, float]:
    """A paired change and half of its interval."""
    value, half = cell.split("±")
    return float(value), float(half)


def column(name: str, regime: str = NARROWER) -> list[float]:
    """A column's values by μ, ascending."""
    rows = sorted((mu, row) for (where, mu), row in known_consumers().items() if where == regime)
    return [number(row[name]) for _, row in rows]


def seen_and_unseen_move_less() -> bool:
    names = ("scores of seen move by", "of unseen")
    return all(column(name) == sorted(column(name), reverse=True) for name in names)


def both_are_closer() -> bool:
    """Whether (2) of seen and of unseen teams is closer to 0 by about a point, and by more than the
    interval."""
    rows = [known_consumers()[NARROWER, mu] for mu in ("0.5", "0.9")]
    changes = [change(row[f"change of {who}"]) for row in rows for who in ("seen", "unseen")]
    below = [value for who in ("seen", "unseen") for value in column(f"(2) {who}, %")]
    return all(0.8 < value < 1.5 and value > half for value, half in changes) and max(below) < 0


def intended_within_a_percent() -> bool:
    value, half = change(known_consumers()[NARROWER, "0.5"]["change, %"])
    return abs(value) < 1 < abs(value) + half


def others_pay() -> bool:
    return all(column(name) == sorted(column(name)) for name in ("(3)", "of other"))


def wider_gains_nothing() -> bool:
    for regime in WIDER:
        row = known_consumers()[regime, "0.5"]
        small = all(abs(value) < 0.5 for value in column("(2) seen, %", regime))
        gains = [change(row[f"change of {who}"]) for who in ("seen", "unseen")]
        no_gain = all(value < half for value, half in gains)
        unseen = column("of unseen", regime)
        if not (small and no_gain and unseen[0] < unseen[1]):
            return False
    return True


def a_quarter_less_at_a_lower_weight() -> bool:
    regime = "wider, λ = 2"
    seen, unseen = column("scores of seen move by", regime), column("of unseen", regime)
    value, half = change(known_consumers()[regime, "0.5"]["change, %"])
    less = 0.7 < seen[1] / seen[0] < 0.8 and 0.9 < unseen[1] / unseen[0] < 1
    return less and abs(value) + half < 1


def verdicts_of_half_the_queries() -> bool:
    """Five corpora have a verdict; CACM is the worst of them."""
    rows = by_first(MIGRATE, "verdicts")
    of_ways = "regret: shown, expected, always reindex, never"
    regret = {
        corpus: [float(part) for part in row[of_ways].split(", ")]
        for corpus, row in rows.items()
        if not row["verdicts"].startswith("0 of")
    }
    judged = {corpus: row[0] for corpus, row in regret.items() if corpus != "all"}
    worst = max(judged, key=judged.__getitem__)
    fewer = len(rows) - len(regret)
    counted = (len(judged), fewer, worst, judged[worst], *regret["all"][:3])
    return counted == (5, 2, "CACM", 0.03, 0.013, 0.007, 0.089)


def what_was_gained_is_taken() -> bool:
    regime = "wider, λ = 2"
    row = known_consumers()[regime, "0.5"]
    for who in ("seen", "unseen"):
        without, known = column(f"(2) {who}, %", regime)
        value, half = change(row[f"change of {who}"])
        if not (without > known > 0 and -value > half):
            return False
    return True


CLAIMS: list[Claim] = [
    (README, "It works as well on every later version", the_chain_keeps_consumers),
    (README, "it falls below 0.6, and chance has 0.5", raw_is_chance),
    (README, "Aligned training loses 4.65 ± 3.05 %", as_table_3_has_it),
    (README, "On five judged collections", verdicts_of_half_the_queries),
    (RESULTS, 'With the candidates as they are ("raw") its ranking collapses', own_queries),
    (RESULTS, "a ranking by inner product survives", raw_on_both_sides),
    (COMPARE, "an alignment (2) is above 0", alignment_gains),
    (COMPARE, "What the loss is a mean over decides most of", most_of_the_error),
    (COMPARE, "is below theirs at one seed and equal to it", below_theirs_or_equal),
    (COMPARE, "their start of W lowers the error most", their_start_lowers_most),
    (UPGRADING, "With GraphSAGE its error is smaller", smaller_with_graphsage),
    (UPGRADING, "the candidates hardly differ", candidates_hardly_differ),
    (UPGRADING, "Solving for the transform in the end costs nothing", candidates_hardly_differ),
    (UPGRADING, "takes at most a tenth longer than over two", history_costs_nothing),
    (UPGRADING, "The scores of seen teams move less, and so do those", seen_and_unseen_move_less),
    (UPGRADING, "(2) of both is about a point closer to 0", both_are_closer),
    (UPGRADING, "(1) stays within a percent on average", intended_within_a_percent),
    (UPGRADING, "scores of other teams move further", others_pay),
    (
        UPGRADING,
        "the alignment leaves hardly anything to repair, and μ gains nothing",
        wider_gains_nothing,
    ),
    (UPGRADING, "move by a quarter less with μ = 0.5", a_quarter_less_at_a_lower_weight),
    (UPGRADING, "serve these consumers better than version 0's own", what_was_gained_is_taken),
]
