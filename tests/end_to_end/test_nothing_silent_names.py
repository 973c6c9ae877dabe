"""No name and no link leads out of a lineage's folder: promise 19; names follow one rule: 20."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.command import Command
from tests.support.forging import forge
from tests.support.published_vectors import add_probe

from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage


def forge_side(imported_lineage: Path, side: str) -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["embeddings"] = {side: facts["embeddings"]["object"]}

    forge(imported_lineage / "versions/0/manifest.json", change)


@pytest.mark.parametrize(
    "command",
    [
        ("vectors", "export", "l", "out.parquet", "--side", "../../../x"),
        ("store", "fill", "l", "--store", "object=s"),
    ],
)
def test_19_a_forged_side_is_read_nowhere(
    evergram: Command, imported_lineage: Path, command: tuple[str, ...]
) -> None:
    """Its file is there, outside, and its hash is right."""
    embeddings = imported_lineage / "embeddings/0/object.parquet"
    outside = imported_lineage.parent.parent / "x.parquet"
    outside.write_bytes(embeddings.read_bytes())
    forge_side(imported_lineage, "../../../x")
    assert "'../../../x' cannot be the name of a file or a side" in evergram(*command).refusal()
    assert not Path("out.parquet").exists()
    outside.unlink()


def test_19_a_forged_file_of_a_version_is_read_nowhere(
    evergram: Command, imported_lineage: Path
) -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["files"]["../../../data.parquet"] = hashlib.sha256(
            Path("data.parquet").read_bytes()
        ).hexdigest()

    forge(imported_lineage / "versions/0/manifest.json", change)
    assert (
        "'../../../data.parquet' cannot be the name of a file"
        in evergram("lineage", "check", "l").refusal()
    )


@pytest.mark.parametrize(
    ("part", "command"),
    [
        ("embeddings", ("vectors", "export", "l", "out.parquet", "--side", "object")),
        (
            "embeddings/0/object.parquet",
            ("vectors", "export", "l", "out.parquet", "--side", "object"),
        ),
        ("lineage.json", ("lineage", "list", "l")),
        ("embeddings", ("vectors", "align", "0", "new.parquet", "--lineage", "l")),
    ],
)
def test_19_a_link_out_of_the_lineage_is_refused(
    evergram: Command, imported_lineage: Path, part: str, command: tuple[str, ...]
) -> None:
    place, outside = imported_lineage / part, imported_lineage.parent / "outside"
    if place.exists():
        place.rename(outside)
    else:
        outside.mkdir()
    place.symlink_to(outside)
    assert "outside of the lineage's folder, by a symbolic link" in evergram(*command).refusal()
    assert not Path("out.parquet").exists()


def test_19_nothing_is_cleared_away_outside(evergram: Command, imported_lineage: Path) -> None:
    """A publication removes what a lineage does not list, wherever a link leads."""
    own = Path("mine/thesis.txt")
    own.parent.mkdir()
    own.write_text("years of work")
    place = imported_lineage / "versions"
    place.rename("moved")
    place.symlink_to(own.parent.absolute())
    assert (
        "by a symbolic link"
        in evergram("vectors", "align", "0", "new.parquet", "--lineage", "l").refusal()
    )
    assert own.read_text() == "years of work"


@pytest.mark.parametrize("forged", ["probes/../../data.parquet", "link"])
def test_19_a_forged_probe_is_not_run(
    evergram: Command, imported_lineage: Path, forged: str
) -> None:
    assert add_probe(evergram, "plain.onnx").code == 0
    if forged == "link":
        probe = ConsumerRegistry.open(imported_lineage).get("ads").probe
        assert probe is not None
        (imported_lineage / probe.data).unlink()
        (imported_lineage / probe.data).symlink_to(Path("data.parquet").absolute())
    else:
        change = lambda facts: facts["consumers"][0]["probe"].update(data=forged)  # noqa: E731
        forge(imported_lineage / "consumers.json", change)
    probe_run = evergram("consumer", "probe", "l")
    assert probe_run.code == 1
    assert "The probe of ads (v0) could not be run: " in probe_run.err


def test_19_a_lineage_elsewhere_is_trusted_no_more(
    evergram: Command, publisher_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERGRAM_CACHE", str(publisher_folder / "cache"))
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    place = "memory://bucket/l"
    assert evergram("vectors", "import", "old.parquet", "--lineage", place).code == 0
    files = MemoryFileSystem()
    name = "/bucket/l/versions/0/manifest.json"
    (publisher_folder / "manifest.json").write_bytes(files.cat_file(name))

    def change(facts: dict[str, Any]) -> None:
        facts["embeddings"] = {"../../x": facts["embeddings"]["object"]}

    forge(publisher_folder / "manifest.json", change)
    files.pipe_file(name, (publisher_folder / "manifest.json").read_bytes())
    files.pipe_file("/bucket/l/x.parquet", b"x")
    command = ("vectors", "export", place, "out.parquet", "--side", "../../x")
    assert "'../../x' cannot be the name of a file or a side" in evergram(*command).refusal()
    assert not list((publisher_folder / "cache").rglob("x.parquet"))


@pytest.mark.parametrize("name", ["../x", "a\nb"])
def test_20_names_are_made_by_one_rule(
    evergram: Command, imported_lineage: Path, name: str
) -> None:
    rule = "a name is made of letters"
    Path("r.toml").write_text(f"name = {json.dumps(name)}\n[data]\nkind = 'synthetic'\n")
    commands: list[tuple[object, ...]] = [
        ("vectors", "import", "old.parquet", "--lineage", "new", f"--name={name}"),
        ("vectors", "align", "old.parquet", "new.parquet", "--lineage", "new", f"--name={name}"),
        ("train", "r.toml", "--lineage", "new"),
        ("consumer", "add", "l", "--pin", "v0", "--", name),
        ("lineage", "label", "l", "--", name, "0"),
    ]
    for command in commands:
        assert rule in evergram(*command).refusal()
    assert not Path("new").exists()


def test_20_a_name_of_any_kind_is_taken_by_all(evergram: Command, publisher_folder: Path) -> None:
    name = "Films.v2_beta-1"
    for imported_lineage, command in (
        ("a", ("vectors", "import", "old.parquet")),
        ("l", ("vectors", "align", "old.parquet")),
    ):
        more = ("new.parquet",) if command[1] == "align" else ()
        assert evergram(*command, *more, "--lineage", imported_lineage, "--name", name).code == 0
    assert evergram("consumer", "add", "l", name, "--pin", "v0").code == 0
    assert evergram("lineage", "label", "l", name, "0").code == 0
    assert Lineage.open("l").resolve(name) == 0
