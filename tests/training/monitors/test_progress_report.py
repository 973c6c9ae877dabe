"""A training shows its evaluations; what trains nothing does not import the training loop."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evergram.releasing.upgrade import train
from evergram.training.recipe import Recipe


def test_each_evaluation_is_a_line(small: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    train(small, progress=True)
    lines = [n for n in capsys.readouterr().err.splitlines() if n.startswith("version 0: epoch")]
    assert lines[0].startswith("version 0: epoch 1 loss 0.")
    assert "recall@20 0." in lines[0]


def test_progress_alone_imports_no_training_loop() -> None:
    code = (
        "import sys, evergram.training.progress as _; print('evergram.training.loop' in sys.modules"
    )
    code += " or 'evergram.training.callbacks' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == "False"
