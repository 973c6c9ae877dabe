"""Communication between the processes of one training run. All run the same program, each on its
share of every batch; only the first process reads the clock and writes files."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

# Import this before a process group exists. Its functions keep the group that exists at import
# (torch._dynamo would import it later); such a group outlives `destroy_process_group`, and its
# threads abort the process at exit.
import torch.distributed.nn.functional
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives, process_count
from evergram.encoders.encoder import Encoder
from evergram.errors import TrainingError

# Environment variable: how many seconds a process waits for the others.
TIMEOUT = "EVERGRAM_PROCESS_TIMEOUT"
# The default is long because all wait while the first process writes a large checkpoint.
SECONDS = 3600.0
# Difference between the seeds of two processes, for modules with dropout.
SEEDS_APART = 7_919_000_003


class ProcessCollectives(Collectives):
    """Collective operations of torch's default process group, which must be initialised.

    Args:
        device: for exchanging objects and CPU tensors; "cuda" with NCCL.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank: int = torch.distributed.get_rank()
        self.size: int = torch.distributed.get_world_size()
        self.device = device

    def sum(self, tensor: Tensor, kind: str) -> Tensor:
        total = tensor.detach().clone().contiguous()
        with self.reaching_others():
            torch.distributed.all_reduce(total)
        return total

    def rows(self, mine: Tensor, count: int, kind: str) -> Tensor:
        counts = self.counts(count)
        parts = self._gathered(mine.detach()[: counts[self.rank]], max(counts), kind)
        return torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])

    def sparse_rows(self, gradient: Tensor, most: int, kind: str) -> Tensor:
        gradient = gradient.coalesce()
        # The padding adds zeros to row 0.
        both = gradient.indices()[0], gradient.values()
        ids, values = (torch.cat(self._gathered(each, most, kind)) for each in both)
        whole = torch.sparse_coo_tensor(ids[None], values, gradient.shape, check_invariants=False)
        return whole.coalesce()

    def from_first(self, make: Callable[[], Any]) -> Any:
        answer = [make() if self.is_first else None]
        with self.reaching_others():
            torch.distributed.broadcast_object_list(answer, 0, device=self.device)
        return answer[0]

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return the first process's tensor, on the CPU; others pass one of the same shape."""
        moved = tensor.to(self.device, copy=True)
        with self.reaching_others():
            torch.distributed.broadcast(moved, 0)
        return moved.cpu()

    def _gathered(self, mine: Tensor, most: int, kind: str) -> list[Tensor]:
        """Return the rows of each process, padded with zeros to `most`."""
        padded = mine.new_zeros(most, *mine.shape[1:])
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        with self.reaching_others():
            torch.distributed.all_gather(parts, padded)
        return parts

    @contextmanager
    def reaching_others(self) -> Iterator[None]:
        """Raise TrainingError if another process ends or does not answer in the block."""
        try:
            yield
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise TrainingError(
                f"Process {self.rank} of {self.size} cannot continue: another process of this "
                f"command has ended or did not answer ({reason}). See that process's own message; "
                "run the same command again, with any number of processes, to resume."
            ) from error


def join_processes(device: torch.device) -> Collectives:
    """Return the collective operations of the processes started by `torchrun`; `ALONE` without it.

    Processes wait for each other for EVERGRAM_PROCESS_TIMEOUT seconds, an hour by default. With the
    device "cuda", the process uses the GPU of its LOCAL_RANK.

    Raises: TrainingError: the others cannot be reached, or that GPU does not exist.
    """
    if process_count() == 1:
        return ALONE
    if not torch.distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        try:
            if device.type == "cuda":
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
            limit = timedelta(seconds=float(os.environ.get(TIMEOUT) or SECONDS))
            torch.distributed.init_process_group(backend, timeout=limit)
        except (RuntimeError, ValueError, OverflowError) as error:
            raise TrainingError(
                f"The processes of this training cannot reach each other ({error}); start them all "
                "with torchrun, at most one for each GPU, with the same --rdzv-endpoint on every "
                f"machine; {TIMEOUT} must be unset or a number of seconds."
            ) from error
        # Tests destroy their groups before exit.
        atexit.register(
            lambda: torch.distributed.is_initialized() and torch.distributed.destroy_process_group()
        )
    return ProcessCollectives(device)


def seed_of_process(encoder: Encoder, seed: int, collectives: Collectives) -> int:
    """Return this process's seed for torch's generator. A user's modules get a different seed in
    each process, so that dropout masks differ.

    Raises: TrainingError: the encoder's modules use batch normalisation.
    """
    if collectives.size == 1 or encoder.kind != "module":
        return seed  # graph encoders normalise over all entities, which every process embeds
    for name, module in encoder.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise TrainingError(
                f"The encoder's {name} is a {type(module).__name__}, which would only normalise "
                f"over one process's rows, and {collectives.size} processes share each batch; use "
                "LayerNorm, or train in one process."
            )
    return seed + SEEDS_APART * collectives.rank
