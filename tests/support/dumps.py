"""A small MediaWiki dump in the schemas of 2010 and of today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Rows = list[tuple[Any, ...]]
PAGE = "page_id page_namespace page_title page_is_redirect"

# id, namespace, title, is redirect. 4 → 3 → 2, 5 ⇄ 6, 7 → another wiki, 8 → nothing.
PAGES: Rows = [
    (1, 0, "April", 0),
    (2, 0, "Conan_O'Brien", 0),
    (3, 0, "O'Brien", 1),
    (4, 0, "Conan_(host)", 1),
    (5, 0, "Loop", 1),
    (6, 0, "Pool", 1),
    (7, 0, "Elsewhere", 1),
    (8, 0, "Dead", 1),
    (9, 1, "April", 0),
    (10, 0, "Été_(saison)", 0),
]
REDIRECTS: Rows = [
    (3, 0, "Conan_O'Brien", "", ""),
    (4, 0, "O'Brien", None, None),
    (5, 0, "Pool", None, ""),
    (6, 0, "Loop", None, ""),
    (7, 0, "April", "de", ""),
    (9, 0, "April", "", ""),
]
# from, namespace and title of the target, and what becomes of it
LINKS: Rows = [
    (1, 0, "Conan_O'Brien", "links"),
    (1, 0, "O'Brien", "repeated_links"),
    (10, 0, "Conan_(host)", "links"),
    (2, 0, "April", "links"),
    (2, 0, "Conan_O'Brien", "self_links"),
    (2, 0, "Conan_(host)", "self_links"),
    (1, 0, "Loop", "links_to_dead_redirects"),
    (1, 0, "Elsewhere", "links_to_dead_redirects"),
    (1, 0, "Dead", "links_to_dead_redirects"),
    (1, 0, "Nowhere", "links_to_missing_pages"),
    (1, 1, "April", "links_to_other_namespaces"),
    (3, 0, "Conan_O'Brien", "links_not_from_articles"),
    (9, 0, "April", "links_not_from_articles"),
    (99, 0, "April", "links_not_from_articles"),
]
MEMBERS: Rows = [
    (1, "Months"),
    (1, "Months_of_spring"),
    (2, "People"),
    (3, "People"),
    (10, "Months"),
]


def sql(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    return str(value)


def write_table(folder: Path, name: str, columns: str, rows: Rows, prefix: str = "xwiki-1") -> None:
    lines = ",\n".join(f"  `{c}` varbinary(255) NOT NULL DEFAULT ''" for c in columns.split())
    text = f"CREATE TABLE `{name}` (\n{lines},\n  KEY `k` (`x`)\n) ENGINE=InnoDB;\n"
    if rows:
        values = ",".join("(" + ",".join(map(sql, row)) + ")" for row in rows)
        text += f"INSERT INTO `{name}` VALUES {values};\n"
    (folder / f"{prefix}-{name}.sql").write_text(text)


def old_dump(folder: Path, prefix: str = "xwiki-1") -> Path:
    """The schema of 2010: titles in every table, and a page's restrictions and counter."""
    folder.mkdir(exist_ok=True)
    pages = [(i, n, t, "", 7, r, 0, 0.5) for i, n, t, r in PAGES]
    columns = "page_id page_namespace page_title page_restrictions page_counter page_is_redirect"
    write_table(folder, "page", columns + " page_is_new page_random", pages, prefix)
    links = [row[:3] for row in LINKS]
    write_table(folder, "pagelinks", "pl_from pl_namespace pl_title", links, prefix)
    members = [(i, c, "SORT\nKEY", "page") for i, c in MEMBERS]
    write_table(folder, "categorylinks", "cl_from cl_to cl_sortkey cl_type", members, prefix)
    columns = "rd_from rd_namespace rd_title rd_interwiki rd_fragment"
    write_table(folder, "redirect", columns, REDIRECTS, prefix)
    return folder


def new_dump(folder: Path) -> Path:
    """Today's schema: links and categories name their targets by ids of linktarget."""
    old_dump(folder)
    named = dict.fromkeys([row[1:3] for row in LINKS] + [(14, c) for _, c in MEMBERS])
    # Not in order of id, as nothing promises that.
    ids = {target: 1000 - i * 7 % 64 for i, target in enumerate(named)}
    write_table(
        folder, "linktarget", "lt_id lt_namespace lt_title", [(i, *t) for t, i in ids.items()]
    )
    pages = [(i, n, t, r, 0.5) for i, n, t, r in PAGES]
    write_table(folder, "page", f"{PAGE} page_random", pages)
    links = [(f, 0, ids[n, t]) for f, n, t, _ in LINKS]
    write_table(folder, "pagelinks", "pl_from pl_from_namespace pl_target_id", links)
    members = [(f, "K", ids[14, c]) for f, c in MEMBERS]
    write_table(folder, "categorylinks", "cl_from cl_sortkey cl_target_id", members)
    return folder
