"""What somebody else wrote is not trusted: probes, lineages, archives, names; by the command.

Each test's name begins with the number of the line, in the issue "Nothing silent", that it is for.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from tests.support import onnx_graphs
from tests.support.command import Command, CommandResult, run_process
from tests.support.forging import forge

from evergram.evaluation.probes.probe_process import ProbeProcess
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.vector_files.writers import write_vectors

ROWS, DIM = 300, onnx_graphs.DIM
IDS = [f"id{i}" for i in range(ROWS)]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the publisher is: vectors of three models, and files of a consumer's probe."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(ROWS, DIM)).astype(np.float32)
    turn, _ = np.linalg.qr(draw.normal(size=(DIM, DIM)))
    for name, found in (("old", vectors), ("new", vectors @ turn.astype(np.float32))):
        write_vectors(Path(f"{name}.parquet"), [(pa.array(IDS), torch.from_numpy(found))])
    label = vectors.sum(axis=1) > 0
    pq.write_table(pa.table({"id": IDS, "label": label}), "data.parquet")
    Path("plain.onnx").write_bytes(onnx_graphs.plain().SerializeToString())
    return tmp_path


@pytest.fixture
def lineage(evergram: Command, folder: Path) -> Path:
    """With one version."""
    assert evergram("import", "old.parquet", "--lineage", "l").code == 0
    return folder / "l"


def add(evergram: Command, model: str, *more: object) -> CommandResult:
    probe = ("--pin", "v0", "--probe", model, "--data", "data.parquet")
    return evergram("consumer-add", "l", "ads", *probe, *more)


# 18. Probes are foreign programs.


@pytest.mark.long
def test_18_a_probe_that_never_ends_does_not_hang_the_command(
    evergram: Command, lineage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("loop.onnx").write_bytes(onnx_graphs.looping().SerializeToString())
    monkeypatch.setenv("EVERGRAM_PROBE_SECONDS", "5")
    assert (
        "loop.onnx cannot be used as a probe: it did not answer"
        in add(evergram, "loop.onnx").refusal()
    )
    assert ConsumerRegistry.open(lineage).list() == ()


@pytest.mark.skipif(sys.platform != "linux", reason="the system keeps no limit of memory")
def test_18_a_probe_that_takes_all_memory_is_refused_it(
    evergram: Command, lineage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("huge.onnx").write_bytes(onnx_graphs.hungry().SerializeToString())
    monkeypatch.setenv("EVERGRAM_PROBE_MIB", "300")
    assert "it needs more than 300 MiB of memory" in add(evergram, "huge.onnx").refusal()


@pytest.mark.parametrize("where", ["initializer", "attribute"])
def test_18_numbers_in_other_files_are_refused(
    evergram: Command, lineage: Path, where: str
) -> None:
    """They would be those of the publisher's folder, whatever these are that day."""
    np.ones(DIM, np.float32).tofile("w.bin")
    Path("parts.onnx").write_bytes(onnx_graphs.external(where).SerializeToString())
    assert "keeps numbers in other files (external data)" in add(evergram, "parts.onnx").refusal()


def dies(monkeypatch: pytest.MonkeyPatch, *, at: Callable[..., Any]) -> None:
    """Let the process of every probe be killed while it is at work."""

    def killed(process: ProbeProcess, *arguments: Any) -> Any:
        os.kill(process._process.pid, signal.SIGSEGV)
        return at(process, *arguments)

    monkeypatch.setattr(ProbeProcess, at.__name__, killed)


def test_18_a_probe_that_dies_fails_the_strict_gate_and_is_told_without_it(
    evergram: Command, lineage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert add(evergram, "plain.onnx", "--min", "0.9").code == 0
    dies(monkeypatch, at=ProbeProcess.value)
    align = ("align", "0", "new.parquet", "--lineage", "l")
    assert "could not be run: " in evergram(*align, "--strict-probes").refusal()
    assert Lineage.open(lineage).newest == 0
    told = evergram(*align)
    assert told.code == 0, told.err
    assert "warning: The probe of ads (v0) could not be run: " in told.err
    assert "ended by SIGSEGV, without an answer" in told.err
    (probe,) = Lineage.open(lineage).metrics(1)["probes"]
    assert (probe["value"], probe["broken"]) == (None, True)
    failed = evergram("probe", "l")
    assert failed.code == 1
    assert "ended by SIGSEGV" in failed.err


def test_18_a_probe_is_measured_as_before(evergram: Command, lineage: Path) -> None:
    added = add(evergram, "plain.onnx", "--min", "0.9", "--json")
    assert json.loads(added.out)["probe"]["baseline"]["value"] == 1.0
    kept = evergram("align", "0", "new.parquet", "--lineage", "l", "--strict-probes", "--json")
    assert kept.code == 0, kept.err
    (probe,) = json.loads(kept.out)["probes"]
    assert (probe["broken"], probe["objects"]) == (False, ROWS)
    assert probe["value"] > 0.99


def test_18_a_model_with_one_answer_for_all_is_no_probe(evergram: Command, lineage: Path) -> None:
    Path("one.onnx").write_bytes(onnx_graphs.single().SerializeToString())
    assert f"gives 1 answers for {ROWS} objects" in add(evergram, "one.onnx").refusal()


def test_18_a_limit_that_is_no_number_is_said(
    evergram: Command, lineage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERGRAM_PROBE_SECONDS", "soon")
    assert "EVERGRAM_PROBE_SECONDS is 'soon'" in add(evergram, "plain.onnx").refusal()


# 19. Names and links in a lineage's files.


def forge_side(lineage: Path, side: str) -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["embeddings"] = {side: facts["embeddings"]["object"]}

    forge(lineage / "versions/0/manifest.json", change)


@pytest.mark.parametrize(
    "command",
    [
        ("export", "l", "out.parquet", "--side", "../../../x"),
        ("check", "l"),
        ("fill", "l", "--store", "object=s"),
    ],
)
def test_19_a_forged_side_is_read_nowhere(
    evergram: Command, lineage: Path, command: tuple[str, ...]
) -> None:
    """Its file is there, outside, and its hash is right."""
    embeddings = lineage / "embeddings/0/object.parquet"
    outside = lineage.parent.parent / "x.parquet"
    outside.write_bytes(embeddings.read_bytes())
    forge_side(lineage, "../../../x")
    assert "'../../../x' cannot be the name of a file or a side" in evergram(*command).refusal()
    assert not Path("out.parquet").exists()
    outside.unlink()


@pytest.mark.long
def test_19_a_forged_side_is_not_served(lineage: Path) -> None:
    forge_side(lineage, "../../../x")
    assert (
        "'../../../x' cannot be the name of a file or"
        in run_process("serve", "l", "--port", "0").refusal()
    )


def test_19_a_forged_file_of_a_version_is_read_nowhere(evergram: Command, lineage: Path) -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["files"]["../../../data.parquet"] = hashlib.sha256(
            Path("data.parquet").read_bytes()
        ).hexdigest()

    forge(lineage / "versions/0/manifest.json", change)
    assert (
        "'../../../data.parquet' cannot be the name of a file" in evergram("check", "l").refusal()
    )


@pytest.mark.parametrize(
    ("part", "command"),
    [
        ("embeddings", ("export", "l", "out.parquet", "--side", "object")),
        ("embeddings/0/object.parquet", ("export", "l", "out.parquet", "--side", "object")),
        ("versions/0/canary.parquet", ("check", "l")),
        ("lineage.json", ("versions", "l")),
        ("embeddings", ("align", "0", "new.parquet", "--lineage", "l")),
    ],
)
def test_19_a_link_out_of_the_lineage_is_refused(
    evergram: Command, lineage: Path, part: str, command: tuple[str, ...]
) -> None:
    place, outside = lineage / part, lineage.parent / "outside"
    if place.exists():
        place.rename(outside)
    else:
        outside.mkdir()
    place.symlink_to(outside)
    assert "outside of the lineage's folder, by a symbolic link" in evergram(*command).refusal()
    assert not Path("out.parquet").exists()


@pytest.mark.long
def test_19_a_store_that_leads_out_of_the_lineage_is_not_served(lineage: Path) -> None:
    (lineage.parent / "outside").mkdir()
    (lineage / "stores").symlink_to(lineage.parent / "outside")
    assert (
        "outside of the lineage's folder, by a symbolic"
        in run_process("serve", "l", "--port", "0").refusal()
    )
    assert not list((lineage.parent / "outside").iterdir())


def test_19_nothing_is_cleared_away_outside(evergram: Command, lineage: Path) -> None:
    """A publication removes what a lineage does not list, wherever a link leads."""
    own = Path("mine/thesis.txt")
    own.parent.mkdir()
    own.write_text("years of work")
    place = lineage / "versions"
    place.rename("moved")
    place.symlink_to(own.parent.absolute())
    assert "by a symbolic link" in evergram("align", "0", "new.parquet", "--lineage", "l").refusal()
    assert own.read_text() == "years of work"


@pytest.mark.parametrize("forged", ["../data.parquet", "probes/../../data.parquet", "link"])
def test_19_a_forged_probe_is_not_run(evergram: Command, lineage: Path, forged: str) -> None:
    assert add(evergram, "plain.onnx").code == 0
    if forged == "link":
        probe = ConsumerRegistry.open(lineage).get("ads").probe
        assert probe is not None
        (lineage / probe.data).unlink()
        (lineage / probe.data).symlink_to(Path("data.parquet").absolute())
    else:
        change = lambda facts: facts["consumers"][0]["probe"].update(data=forged)  # noqa: E731
        forge(lineage / "consumers.json", change)
    found = evergram("probe", "l")
    assert found.code == 1
    assert "The probe of ads (v0) could not be run: " in found.err


def test_19_a_lineage_elsewhere_is_trusted_no_more(
    evergram: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERGRAM_CACHE", str(folder / "cache"))
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    place = "memory://bucket/l"
    assert evergram("import", "old.parquet", "--lineage", place).code == 0
    files = MemoryFileSystem()
    name = "/bucket/l/versions/0/manifest.json"
    (folder / "manifest.json").write_bytes(files.cat_file(name))

    def change(facts: dict[str, Any]) -> None:
        facts["embeddings"] = {"../../x": facts["embeddings"]["object"]}

    forge(folder / "manifest.json", change)
    files.pipe_file(name, (folder / "manifest.json").read_bytes())
    files.pipe_file("/bucket/l/x.parquet", b"x")
    command = ("export", place, "out.parquet", "--side", "../../x")
    assert "'../../x' cannot be the name of a file or a side" in evergram(*command).refusal()
    assert not list((folder / "cache").rglob("x.parquet"))


# 20. Archives, permissions and names.


def train(evergram: Command, kind: str, path: Path) -> CommandResult:
    recipe = Path("r.toml")
    recipe.write_text(f'[data]\nkind = "{kind}"\npath = "{path}"\n')
    return evergram("train", recipe, "--lineage", "new")


@pytest.mark.long
def test_20_an_archive_that_expands_without_end_is_refused(evergram: Command, folder: Path) -> None:
    """80 MiB in a file of 80 KiB, as MovieLens and as a table."""
    rows = b"1,1,1,1\n" * 10_000_000
    with zipfile.ZipFile("ml.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ratings.csv", b"userId,movieId,rating,timestamp\n" + rows)
    Path("pairs.csv.gz").write_bytes(gzip.compress(b"query,candidate,value,time\n" + rows))
    for kind, path in (("movielens", "ml.zip"), ("table", "pairs.csv.gz")):
        found = train(evergram, kind, folder / path)
        assert "expands to more than 64 MiB, over 100 times its size" in found.refusal()
        assert "EVERGRAM_MAX_EXPANSION" in found.err
    assert not Path("new").exists()


def test_20_what_holds_tokens_is_not_for_everybody(evergram: Command, lineage: Path) -> None:
    before = os.umask(0o022)
    try:
        assert add(evergram, "plain.onnx", "--token").code == 0
        assert evergram("align", "0", "new.parquet", "--lineage", "l").code == 0
    finally:
        os.umask(before)
    for path in lineage.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    # Shared with a group, once and for all.
    subprocess.run(["chmod", "-R", "g+rX", str(lineage)], check=True)
    assert evergram("consumer-token", "l", "ads").code == 0
    assert evergram("align", "1", "old.parquet", "--lineage", "l").code == 0
    for path in lineage.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o750 if path.is_dir() else 0o640), path


@pytest.mark.parametrize("name", ["../x", "a b", "", "-x", "shop@v0", "x" * 129, "a\nb"])
def test_20_names_are_made_by_one_rule(evergram: Command, lineage: Path, name: str) -> None:
    rule = "a name is made of letters"
    Path("r.toml").write_text(f"name = {json.dumps(name)}\n[data]\nkind = 'synthetic'\n")
    commands: list[tuple[object, ...]] = [
        ("import", "old.parquet", "--lineage", "new", f"--name={name}"),
        ("align", "old.parquet", "new.parquet", "--lineage", "new", f"--name={name}"),
        ("train", "r.toml", "--lineage", "new"),
        ("consumer-add", "l", "--pin", "v0", "--", name),
        ("label", "l", "--", name, "0"),
    ]
    for command in commands:
        assert rule in evergram(*command).refusal()
    assert not Path("new").exists()


def test_20_a_name_of_any_kind_is_taken_by_all(evergram: Command, folder: Path) -> None:
    name = "Films.v2_beta-1"
    for lineage, command in (("a", ("import", "old.parquet")), ("l", ("align", "old.parquet"))):
        more = ("new.parquet",) if command[0] == "align" else ()
        assert evergram(*command, *more, "--lineage", lineage, "--name", name).code == 0
    assert evergram("consumer-add", "l", name, "--pin", "v0").code == 0
    assert evergram("label", "l", name, "0").code == 0
    assert Lineage.open("l").resolve(name) == 0


# Also: kills are injected, not waited for.

DYING = """
import sys
from pathlib import Path
import torch
from tests.support.dying import die_at
# All that a command imports, before its operations on files are counted.
import evergram.releasing.files.align, evergram.releasing.probes
import evergram.lineage.consumers.registry
number, folder, *sys.argv = sys.argv[1:]
die_at(int(number), Path(folder))
main()
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [3, 20, 40, 60, 80])
def test_also_a_command_that_is_killed_leaves_whole_versions(
    evergram: Command, lineage: Path, number: int
) -> None:
    """The command itself, killed just before one of its operations on the lineage's files."""
    align = ["evergram", "align", "0", "new.parquet", "--lineage", str(lineage)]
    died = subprocess.run(
        [sys.executable, "-c", DYING, str(number), str(lineage), *align],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    newest = Lineage.open(lineage).newest
    assert evergram("check", "l").code == 0
    assert evergram("align", str(newest), "old.parquet", "--lineage", "l").code == 0
    assert not list(lineage.rglob(".*.part"))
