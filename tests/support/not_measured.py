"""Sentences of the documents that compare and state no measurement: definitions and mechanisms."""

from __future__ import annotations

# By page, a part of each sentence.
NOT_MEASURED: dict[str, list[str]] = {
    "README.md": [
        "a better model cannot be shipped, because",
    ],
    "docs/training.md": [
        "the parameters of the best epoch, the place in the epoch",
        "those of the best epoch, and the optimiser's sums",
        "beside the best of 24 settings",
        "each with the best of eight settings of λ",
        "each with the best of six settings drawn",
        "Which of eight draws is the best is partly luck",
        # tests/gramian/test_contributions.py
        "In tests it more than halves the variance of the penalty's value",
        "If the last evaluation is the best of all",
        # tests/training/monitors: early stopping, and the work of evaluations.
        "Small gains add up, because the reference stays until one is seen",
        "of all test queries if ranking them takes no more than the share",
        # tests/releasing/test_publish.py
        "**Limits read the worse end.**",
        # tests/evaluation/large_catalogues
        "it looks at more until it finds 95 % of the best K",
    ],
    "docs/two-tower.md": ["the epoch is the best by selection"],
    # A test checks the figures of the example that follows: tests/gramian/test_penalty_page.py.
    "docs/penalty.md": [
        "the value is g as far as the estimate is good",
        "What makes it worse",
        "lower it towards the end",
    ],
    # What a report says of rows that were mixed up: tests/compatibility/aligner.
    "docs/aligner.md": ["the map is no better than chance"],
    "docs/compare.md": [
        "each kept at its best validation AUC",
        "A mean equal to it does not count as above",
        "The paper chooses the best epoch",
        "the transform with the lowest error after epoch 50",
        "the value that equals `upgrade.weight`",
        "the best selection metric (of the epochs that may be selected) rose",
        "A second table has this gain for every model",
        "is no more than that line and the data",
        "with equal counts of edges, users and items",
    ],
    "docs/upgrading.md": ["publishes a version only if it loses no more than that"],
    "docs/recipes.md": [
        "From the best of these it tries twice and half of each",
        "Several measures add up to weights of higher rank",
    ],
}
