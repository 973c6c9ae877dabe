"""Each sentence of the documents that compares is what a table in the repository says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support import training_claims, upgrade_claims
from tests.support.not_measured import NOT_MEASURED
from tests.support.sentences import (
    COMPARATIVE,
    ROOT,
    comments,
    comparative_sentences,
    prose,
    sentences,
)

PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("training", "two-tower", "graph", "penalty", "aligner"),
            *("compare", "upgrading", "results", "recipes"),
        )
    ),
    *sorted(f"recipes/{path.name}" for path in (ROOT / "recipes").glob("*.toml")),
]
CLAIMS = [*training_claims.CLAIMS, *upgrade_claims.CLAIMS]


def one_line(page: str) -> str:
    text = (ROOT / page).read_text()
    return " ".join((comments(text) if page.endswith(".toml") else prose(text)).split())


@pytest.mark.parametrize(("page", "part", "holds"), CLAIMS, ids=[c[1][:50] for c in CLAIMS])
def test_a_claim_is_in_its_page_and_its_table_says_so(
    page: str, part: str, holds: Callable[[], bool]
) -> None:
    assert part in one_line(page)
    assert holds()


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_that_compares_is_checked_or_is_no_measurement(page: str) -> None:
    parts = [part for where, part, _ in CLAIMS if where == page] + NOT_MEASURED.get(page, [])
    unlisted = [s for s in comparative_sentences(page) if not any(part in s for part in parts)]
    assert not unlisted, "check it against a table here, or say what the table says"


@pytest.mark.parametrize("page", NOT_MEASURED)
def test_what_is_listed_is_still_in_its_page(page: str) -> None:
    assert page in PAGES
    for part in NOT_MEASURED[page]:
        assert part in one_line(page)


def test_a_sentence_that_compares_is_noticed() -> None:
    text = "Storm is\nahead of SOGram. It is a method:\n\n- a slow average is worse than none."
    noticed = [s for s in sentences(text) if COMPARATIVE.search(s)]
    assert noticed == ["Storm is ahead of SOGram.", "a slow average is worse than none."]
