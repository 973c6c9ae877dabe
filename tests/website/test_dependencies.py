"""Every runtime dependency has a licence that is known, and permissive or a named exception."""

from __future__ import annotations

import json
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path

import pytest
from website.dependencies import (
    EXCEPTIONS,
    Licence,
    closure,
    dependencies,
    dependencies_page,
    extras_of_ours,
    licence_of,
    missing,
)

from website import bill_of_materials as bill

ROOT = Path(__file__).parents[2]
# Extras that no user runs: those of developers, and of benchmarks.
OF_DEVELOPERS = {"dev", "site", "peers"}
RUNTIME = [extra for extra in extras_of_ours() if extra not in OF_DEVELOPERS]


def test_every_runtime_dependency_is_permissive_or_a_named_exception() -> None:
    known = dependencies(RUNTIME)
    assert {"torch", "numpy", "fastapi", "starlette"} <= {part.name for part in known}
    assert {p.name for p in known if not p.licence.permissive} <= set(EXCEPTIONS)


def test_what_pip_install_evergram_brings_has_no_exception() -> None:
    assert all(part.licence.permissive for part in dependencies([]))
    assert missing() == set()


def test_an_exception_that_is_permissive_by_now_is_struck_out() -> None:
    known = dependencies(RUNTIME)
    exceptions = {part.name for part in known if part.name in EXCEPTIONS}
    assert {"psycopg", "orjson"} <= exceptions
    assert exceptions <= {part.name for part in known if not part.licence.permissive}


def test_the_security_page_names_every_exception() -> None:
    page = (ROOT / "docs" / "security.md").read_text().split("## Supply chain")[1]
    assert all(f"`{name}`" in page for name in EXCEPTIONS)


@pytest.mark.parametrize(
    ("expression", "permissive"),
    [
        ("MIT", True),
        ("MIT AND BSD-3-Clause", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", False),
        ("Apache-2.0 AND (MIT OR GPL-2.0-only)", True),
        ("GPL-2.0-only AND (MIT OR ISC)", False),
        ("any-OSI", True),
        ("any-OSI AND GPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("", False),
    ],
)
def test_an_expression_is_permissive_where_all_that_holds_is(
    expression: str, permissive: bool
) -> None:
    assert Licence(expression).permissive is permissive


class Described:
    """A distribution with the metadata of a test."""

    def __init__(self, **fields: str) -> None:
        self.metadata = Message()
        for name, value in fields.items():
            self.metadata[name.replace("_", "-")] = value


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (Described(License_Expression="MIT AND ISC", License="GPL"), "MIT AND ISC"),
        (Described(License="MIT"), "MIT"),
        (Described(License="any-OSI"), "any-OSI"),
        (Described(License="MPL-2.0 AND MIT"), "MPL-2.0 AND MIT"),
        (Described(Classifier="License :: OSI Approved :: Apache Software License"), "Apache-2.0"),
        (
            Described(
                Classifier="License :: OSI Approved :: GNU General Public License v3 (GPLv3)"
            ),
            "GPL",
        ),
        (
            Described(Classifier="License :: OSI Approved :: GNU Lesser General Public License v3"),
            "LGPL-3.0",
        ),
        (Described(License="All rights reserved"), ""),
        (Described(), ""),
    ],
)
def test_a_licence_is_read_from_new_and_old_metadata(described: Described, expected: str) -> None:
    assert licence_of(described) == Licence(expected)  # type: ignore[arg-type]


def test_a_closure_has_what_a_dependency_needs_itself() -> None:
    assert "starlette" in closure("serve")
    assert "starlette" not in closure()
    assert "evergram" not in closure("dev")


def test_the_page_has_every_extra_and_dependency_once() -> None:
    page = dependencies_page()
    for extra in RUNTIME:
        assert page.count(f"## `evergram[{extra}]`\n") == 1
    base = page.split("## `evergram`\n")[1].split("\n## ")[0]
    assert {line.split("|")[1].strip() for line in base.splitlines()[3:] if line} == closure()
    assert "not said" not in base


def test_the_bill_of_materials_is_whole_and_the_same_every_time() -> None:
    document = bill.bill_of_materials(["serve"])
    assert document == bill.bill_of_materials(["serve"])
    references = {part["bom-ref"] for part in document["components"]}
    names = {part["name"] for part in document["components"]}
    assert names == closure("serve")
    assert all(part["licenses"] for part in document["components"])
    own = document["metadata"]["component"]["bom-ref"]
    nodes = {node["ref"]: set(node["dependsOn"]) for node in document["dependencies"]}
    assert set(nodes) == {own, *references}
    reached, waiting = {own}, [own]
    while waiting:
        further = nodes[waiting.pop()] - reached
        reached |= further
        waiting += further
    # What an extra of a dependency brings, no dependency needs of itself.
    assert references - reached <= {r for r in references if "pydantic" not in r}
    assert {f"pkg:pypi/{n}@{distribution(n).version}" for n in ("numpy", "fastapi")} <= nodes[own]


def test_a_bill_that_would_not_be_whole_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="There is no extra sevre; there are als, "):
        bill.bill_of_materials(["sevre"])
    monkeypatch.setattr(bill, "missing", lambda extra: {"h11"} if extra == "serve" else set())
    with pytest.raises(SystemExit):
        bill.main(["--extras", "serve", "--out", str(tmp_path / "bom.json")])
    assert "Not installed, so the list would not be whole: h11" in capsys.readouterr().err
    assert not (tmp_path / "bom.json").exists()


def test_the_command_writes_a_file(tmp_path: Path) -> None:
    bill.main(["--out", str(tmp_path / "new" / "bom.json")])
    document = json.loads((tmp_path / "new" / "bom.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
