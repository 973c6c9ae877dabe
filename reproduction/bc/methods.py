"""The methods of [BC] by the paper's names, and the recipes and notes of the presets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.printed import printed

RECIPES = Path(__file__).parent / "recipes"
TINY = RECIPES / "tiny.toml"
# By corpus. The first of a preset is the one that metric (1) is judged on.
SMALL = {
    name: RECIPES / f"{name}.toml"
    for name in ("amazon-beauty", "movielens-25m-head", "amazon-musical-instruments")
}
PAPER = {
    "Musical Instruments": RECIPES / "paper-musical-instruments.toml",
    "Video Games": RECIPES / "paper-video-games.toml",
    "Grocery": RECIPES / "paper-grocery.toml",
}
# Our recipes' names, by the names of [BC] Table 3, and two methods of ours.
KEEP_ALL, FIX, FINETUNE, NON_BC = "keep-all", "fix-m0", "finetune-m0", "non-bc"
POST_SINGLE, POST_MULTI = "post-lin-sloss", "post-lin-mloss"
NO_TRANS, JOINT_SINGLE, ALIGNER = "joint-notrans", "joint-lin-sloss", "bc-aligner"
POST_CLOSED, EVERGRAM = "post-closed", "evergram"
NAMES = {
    KEEP_ALL: "Keep-All",
    FIX: "Fix-M0",
    FINETUNE: "Finetune-M0",
    NON_BC: "Non-BC",
    POST_SINGLE: "Post-Lin-SLoss",
    POST_MULTI: "Post-Lin-MLoss",
    NO_TRANS: "Joint-NoTrans",
    JOINT_SINGLE: "Joint-Lin-SLoss",
    ALIGNER: "BC-Aligner",
    POST_CLOSED: "post-closed (ours)",
    EVERGRAM: "evergram (ours)",
}
# The paper's that keep one model, as Keep-All does not.
PRACTICAL = (FIX, FINETUNE, NON_BC, POST_SINGLE, POST_MULTI, NO_TRANS, JOINT_SINGLE, ALIGNER)
JOINT = (NO_TRANS, JOINT_SINGLE, ALIGNER, EVERGRAM)
COLUMNS = {"intended": "(1)", "unintended": "(2)", "total": "(1)+(2)", "error": "(3)"}
PRINTED_COLUMNS = {
    "intended": "intended",
    "unintended": "unintended",
    "total": "sum",
    "error": "distance",
}
MUSIC = "Musical Instruments"
# Corpora of ours that are an edition of one of theirs.
SAME = {"amazon-musical-instruments": MUSIC} | {name: name for name in PAPER}

SMALL_NOTE = (
    "λ = 16 in the unit of the paper's code, aligned over all objects; versions at the paper's "
    "times. Musical Instruments, of the 2014 edition, a twentieth of the paper's: GraphSAGE "
    "trained by BPR as in the paper, at an eighth of its width, one layer and two from version 2 "
    "on, as the paper has it on Grocery. Amazon Beauty and MovieLens: a factorization of 16 to 32 "
    "dims trained with the penalty on all pairs, which takes many more steps in the same time; "
    "version 0 has no vectors for users and items that came later, so that Fix-M0 cannot serve "
    "them, (2) can be above 0, and (3) is over what version 0 knows. Tables start with a deviation "
    "of 0.1 in place of 1: errors (3) are on another scale. Half of the held-out queries choose "
    "the epoch, the other half are tested; five consumers a task, of 128 units. Amazon Beauty has "
    "no ratings here, so that `activity` is its one consumer task. Claims on metric (1) are judged "
    "on Amazon Beauty, whose versions are tested by thousands of queries (the others' by a few "
    "hundred), all others on Musical Instruments."
)
SWEPT_NOTE = (
    "As Table 3, on Amazon Beauty, whose versions are tested by thousands of queries, and on the "
    "paper's own corpus for this figure in its older edition; with 16 passes, and three versions, "
    "whose intervals are twice as long. Claims on metric (1) are judged on Amazon Beauty, all "
    "others on Musical Instruments."
)
TINY_NOTE = "Made-up data in seconds, for tests; nothing can be learned from its figures."
PAPER_NOTE = (
    "The setting of the paper's code in every key (`preset = 'paper'`), on the three corpora of "
    "the paper: 500 epochs of GraphSAGE a model, meant for a machine with a GPU. Each recipe names "
    "its folder, with the 5-core reviews of Amazon's 2018 edition and their metadata."
)


def theirs(corpus: str, method: str, column: str) -> str:
    """Return the figure of [BC] Table 3 as text: of the same corpus, or else the range of all.

    Args:
        column: a key of `COLUMNS`.
    """
    rows: Mapping[str, Any] = printed("bc")["Table 3"]["rows"]
    name, key = NAMES[method], PRINTED_COLUMNS[column]
    if SAME.get(corpus) in rows:
        rows = {corpus: rows[SAME[corpus]]}
    values = [row[name][key] for row in rows.values() if name in row]
    if not values:
        return ""
    low, high = min(values), max(values)
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"
