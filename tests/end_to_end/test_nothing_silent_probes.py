"""A probe runs in a process of its own, within limits: promise 18."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import onnx_graphs
from tests.support.command import Command
from tests.support.published_vectors import DIM, add_probe

from evergram.evaluation.probes.probe_process import ProbeProcess
from evergram.lineage.lineage import Lineage


@pytest.mark.skipif(sys.platform != "linux", reason="the system keeps no limit of memory")
def test_18_a_probe_that_takes_all_memory_is_refused_it(
    evergram: Command, imported_lineage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("huge.onnx").write_bytes(onnx_graphs.hungry().SerializeToString())
    monkeypatch.setenv("EVERGRAM_PROBE_MIB", "300")
    assert "it needs more than 300 MiB of memory" in add_probe(evergram, "huge.onnx").refusal()


@pytest.mark.parametrize("where", ["initializer", "attribute"])
def test_18_numbers_in_other_files_are_refused(
    evergram: Command, imported_lineage: Path, where: str
) -> None:
    """They would be those of the publisher's folder, whatever these are that day."""
    np.ones(DIM, np.float32).tofile("w.bin")
    Path("parts.onnx").write_bytes(onnx_graphs.external(where).SerializeToString())
    assert (
        "keeps numbers in other files (external data)"
        in add_probe(evergram, "parts.onnx").refusal()
    )


def dies(monkeypatch: pytest.MonkeyPatch, *, at: Callable[..., Any]) -> None:
    """Let the process of every probe be killed while it is at work."""

    def killed(process: ProbeProcess, *arguments: Any) -> Any:
        os.kill(process._process.pid, signal.SIGSEGV)
        return at(process, *arguments)

    monkeypatch.setattr(ProbeProcess, at.__name__, killed)


def test_18_a_probe_that_dies_fails_the_strict_gate_and_is_else_a_warning(
    evergram: Command, imported_lineage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert add_probe(evergram, "plain.onnx", "--min", "0.9").code == 0
    dies(monkeypatch, at=ProbeProcess.value)
    align = ("vectors", "align", "0", "new.parquet", "--lineage", "l")
    assert "could not be run: " in evergram(*align, "--strict-probes").refusal()
    assert Lineage.open(imported_lineage).newest == 0
    align_run = evergram(*align)
    assert align_run.code == 0, align_run.err
    assert "warning: The probe of ads (v0) could not be run: " in align_run.err
    assert "ended by SIGSEGV, without an answer" in align_run.err
    (probe,) = Lineage.open(imported_lineage).metrics(1)["probes"]
    assert (probe["value"], probe["broken"]) == (None, True)
    failed = evergram("consumer", "probe", "l")
    assert failed.code == 1
    assert "ended by SIGSEGV" in failed.err
