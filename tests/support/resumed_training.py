"""A training that is perhaps killed.

`python -m tests.support.resumed_training FOLDER OUT STEP ESTIMATOR SETTING …` keeps its state in
FOLDER after every step, and writes its embeddings to OUT. Before step STEP the last of the
processes is killed; at 0 none is.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tests.support.tiny_training import tiny_recipe

import evergram
from evergram.cli.failures import sentence_and_code
from evergram.collectives import RANK, WORLD, is_first_process
from evergram.encoders.features import SIDES
from evergram.errors import EvergramError
from evergram.training.checkpoints.settings import CheckpointSettings
from evergram.training.step import Step


def main() -> None:
    folder, out, fatal = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    last = int(os.environ.get(RANK, 0)) == int(os.environ.get(WORLD, 1)) - 1
    take, taken = Step.__call__, [0]

    def counted(self: Step, *batch: Any) -> Any:
        taken[0] += 1
        if last and taken[0] == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return take(self, *batch)

    Step.__call__ = counted  # type: ignore[assignment, method-assign]
    more = sys.argv[5:]
    recipe = tiny_recipe("training.epochs=6", f"gramian.kind={sys.argv[4]}", *more)
    every = CheckpointSettings.of("1")
    try:
        artefact = evergram.train(recipe, progress=False, folder=folder, checkpoints=every)
    except EvergramError as error:
        sentence, code = sentence_and_code(error)
        sys.stderr.write(f"{sentence}\n")
        sys.exit(code)
    if is_first_process():
        save_file({side: artefact.block(side)[1].contiguous() for side in SIDES}, out)
        sys.stdout.write(f"{taken[0]} steps\n")


if __name__ == "__main__":
    main()
