"""What the first process decides, and the others follow: when training ends, and where it starts.

Clocks, files and measurements are the first process's alone: the others have no callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evergram.collectives import Collectives
from evergram.errors import TrainingError
from evergram.training.callbacks import Callback
from evergram.training.checkpoints.checkpoint_folder import TrainingState
from evergram.training.distributed.process_group import ProcessCollectives
from evergram.training.distributed.shares import part_of

if TYPE_CHECKING:
    from evergram.training.loop import Trainer
    from evergram.training.monitors.early_stopping import EarlyStopping
    from evergram.training.step import Step

# Apart in the seeds of processes whose modules draw at random, as dropout does.
SEEDS_APART = 7_919_000_003
# The key of an answer of the first process that is not its word yet.
SHARED = "shared"


def share_step(step: Step, collectives: Collectives, seed: int) -> int:
    """Let processes share a step's batches.

    Returns: this process's seed of torch's generator: another one in each process for a user's
        modules, whose dropout would be the same otherwise.
    Raises: TrainingError: the encoder's modules normalise by the batch.
    """
    step.collectives = collectives
    if collectives.size == 1 or step.encoder.kind != "module":
        return seed  # graph encoders normalise over all entities, which every process embeds
    for name, module in step.encoder.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise TrainingError(
                f"The encoder's {name} is a {type(module).__name__}, whose statistics are of the "
                f"rows that a process has, and {collectives.size} processes share each batch; use "
                "LayerNorm, or train in one process."
            )
    return seed + SEEDS_APART * collectives.rank


def decided(
    make: Callable[[], str],
    collectives: Collectives,
    shared: Mapping[str, Callable[[], object]] | None = None,
) -> str:
    """Return what `make` returns in the first process; others do not call theirs.

    Args:
        shared: what the others take part in meanwhile, by name, when the first process calls
            `begin_shared`.
    Raises: TrainingError: in all processes, if `make` raised it.
    """
    if collectives.size == 1:
        return make()
    failures: list[TrainingError] = []

    def attempt() -> dict[str, str]:
        try:
            return {"word": make()}
        except TrainingError as error:
            failures.append(error)
            return {"error": str(error)}

    answer: dict[str, str] = collectives.from_first(attempt)
    while SHARED in answer:
        (shared or {})[answer[SHARED]]()
        answer = collectives.from_first(attempt)
    if failures:
        raise failures[0]
    if "error" in answer:
        raise TrainingError(answer["error"])
    return answer["word"]


def begin_shared(name: str, collectives: Collectives) -> None:
    """Let the other processes, which wait in `decided`, take part in what is shared."""
    if collectives.size > 1 and collectives.is_first:
        collectives.from_first(lambda: {SHARED: name})


def follow_first(run: Trainer) -> None:
    """Start every process where the first one does, which may have resumed."""
    collectives = run.step.collectives
    if not isinstance(collectives, ProcessCollectives):
        return
    state = run.state()
    facts = collectives.from_first(lambda: {**state.facts, "callbacks": {}})
    if not facts["steps"]:
        return
    tensors = tensors_of_first(state.tensors, collectives)
    if not collectives.is_first:
        run.load_state(TrainingState(tensors, facts))
        if run.step.encoder.kind == "module":
            run.generators = {}  # as `share_step` seeds it
    # One process has looked ahead at a whole batch.
    ahead = run.step.look_ahead.items()
    run.step.look_ahead = {s: part_of(rows, len(rows), collectives).rows for s, rows in ahead}


def follow_selection(stopping: EarlyStopping, collectives: Collectives, *, kept: bool) -> None:
    """Give every process the evaluations of the first one, and if `kept` the best parameters."""
    if not isinstance(collectives, ProcessCollectives):
        return
    facts = collectives.from_first(lambda: [stopping.history, stopping.best, stopping.best_epoch])
    stopping.history, stopping.best, stopping.best_epoch = facts
    if kept:
        stopping.kept = tensors_of_first(stopping.kept, collectives)


def tensors_of_first(
    mine: Mapping[str, Tensor], collectives: ProcessCollectives
) -> dict[str, Tensor]:
    """Return the first process's tensors, by name; what other processes have may differ in names
    and shapes."""
    heads: list[list[Any]] = collectives.from_first(
        lambda: [[n, str(t.dtype).removeprefix("torch."), list(t.shape)] for n, t in mine.items()]
    )
    tensors = {}
    for name, dtype, shape in heads:
        buffer = torch.empty(shape, dtype=getattr(torch, dtype), device=collectives.device)
        if collectives.is_first:
            buffer.copy_(mine[name])
        collectives.broadcast(buffer)
        tensors[name] = buffer.cpu()
    return tensors


@contextmanager
def whole_look_ahead(run: Trainer, saving: Sequence[Callback]) -> Iterator[Sequence[Callback]]:
    """Yield the callbacks, of those `saving`, that may save this step; the run's state is whole
    inside the block.

    Each process has a share of the embeddings that `storm` has looked ahead at, and only the first
    one knows when a checkpoint is due. So all exchange four bytes a step, and their shares only
    where a callback wants the state.
    """
    step, together = run.step, run.step.collectives
    if together.size == 1 or not step.wants_before:
        yield saving
        return
    wanting = [callback for callback in saving if callback.wants_state(run)]
    asked = together.sum(torch.tensor(len(wanting), dtype=torch.int32), "counts")
    if not int(asked):
        yield []
        return
    run.look_ahead = {
        side: together.rows(rows, step.look_ahead_rows[side], "look ahead")
        for side, rows in step.look_ahead.items()
    }
    try:
        yield wanting
    finally:
        run.look_ahead = None
