"""Parts of a page: tables with headers and captions, and text that is never markup."""

from __future__ import annotations

from evergram.evaluation.reports.html_page import not_measured, page, table, warning_list


def test_a_table_has_a_caption_and_headers_of_rows_and_columns() -> None:
    text = table("A & B", ["name", "value", "why"], [["<x>", "1", "<b>"]], words=[2])
    assert "<caption>A &amp; B</caption>" in text
    assert text.count('scope="col"') == 3
    assert '<th scope="row">&lt;x&gt;</th><td>1</td><td class="words">&lt;b&gt;</td>' in text
    assert 'tabindex="0"' in text


def test_a_header_without_words_is_no_header() -> None:
    text = table("Metrics", ["", "recall"], [["the version", "0.3"]])
    assert text.count('<th scope="col"') == 1
    assert '<thead><tr><td></td><th scope="col">recall</th></tr></thead>' in text


def test_a_page_escapes_its_title_and_says_what_was_not_measured() -> None:
    text = page("<script>", [not_measured("Recall", "No <pair>."), warning_list(["a < b"])])
    assert "<script>" not in text
    assert "Recall: not measured. No &lt;pair&gt;." in text
    assert "<li>a &lt; b</li>" in text
    assert "prefers-color-scheme: dark" in text
