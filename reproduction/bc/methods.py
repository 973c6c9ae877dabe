"""The methods of [BC] with the paper's names, and the recipes and notes of the presets."""

from __future__ import annotations

from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"
TINY = RECIPES / "tiny.toml"
# By corpus. Metric (1) is judged on the first corpus of a preset.
SMALL = {
    name: RECIPES / f"{name}.toml"
    for name in ("amazon-beauty", "movielens-25m-head", "amazon-musical-instruments")
}
# Names in our recipes of the methods of [BC] Table 3, of other post-hoc transforms (Netflix's is
# orthogonal), and of our two methods.
KEEP_ALL, FIX, FINETUNE, NON_BC = "keep-all", "fix-m0", "finetune-m0", "non-bc"
POST_SINGLE, POST_MULTI = "post-lin-sloss", "post-lin-mloss"
NO_TRANS, JOINT_SINGLE, ALIGNER = "joint-notrans", "joint-lin-sloss", "bc-aligner"
POST_CLOSED, EVERGRAM = "post-closed", "evergram"
POST_AFFINE, POST_ORTHOGONAL = "post-affine", "post-orthogonal"
POST_LAMBDA, POST_MLP = "post-lambda-orthogonal", "post-mlp"
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
    **{name: name for name in (POST_AFFINE, POST_ORTHOGONAL, POST_LAMBDA, POST_MLP)},
    POST_CLOSED: "post-closed (ours)",
    EVERGRAM: "evergram (ours)",
}
# The paper's methods that keep only one model, i.e. all but Keep-All.
PRACTICAL = (FIX, FINETUNE, NON_BC, POST_SINGLE, POST_MULTI, NO_TRANS, JOINT_SINGLE, ALIGNER)
JOINT = (NO_TRANS, JOINT_SINGLE, ALIGNER, EVERGRAM)
COLUMNS = {"intended": "(1)", "unintended": "(2)", "total": "(1)+(2)", "error": "(3)"}
MUSIC = "Musical Instruments"
FILMS = "movielens-25m-head"
# Our corpora that are editions of the paper's.
SAME = {"amazon-musical-instruments": MUSIC}
SHORT = {
    "amazon-beauty": "Beauty",
    "movielens-25m-head": "MovieLens",
    "amazon-musical-instruments": "Music",
    "synthetic": "synthetic",
}
SMALL_NOTE = (
    "λ = 16 in the unit of the paper's code, aligned over all objects; versions at the paper's "
    "times; half of the held-out queries choose the epoch. "
    "Musical Instruments, of the 2014 edition, is a twentieth of the paper's: "
    "BPR and GraphSAGE, of one layer and then two as the paper has it on Grocery, at an eighth of "
    "its width. Amazon Beauty and MovieLens: a "
    "factorization of 16 to 32 dims with the penalty on all pairs, whose version 0 has no vectors "
    "for newer users and items; (2) and (3) are over what version 0 can embed. "
    "Beauty has no ratings, and so one consumer task. Claims on (1) and on the sum are judged on "
    "Beauty, whose versions are tested by thousands of queries, those on (2) alone on MovieLens, "
    "which has all five tasks, those on (3) on each corpus, and Fix-M0 on Musical Instruments."
)
SWEPT_NOTE = (
    "Two of the corpora, as in Table 3, with 16 passes, three versions and five consumers a task."
)
TINY_NOTE = "Made-up data in seconds, for tests; nothing can be learned from its figures."
