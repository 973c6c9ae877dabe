"""What the processes of one training tell each other. All run the same program, each on its share
of every batch; clocks and files are the first process's alone."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

# Its functions keep the group that stands when they are imported, as torch._dynamo does later: the
# group then outlives `destroy_process_group`, and its threads abort the process as it ends.
import torch.distributed.nn.functional
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives, process_count
from evergram.encoders.encoder import Encoder
from evergram.errors import TrainingError

# The variable of the seconds that a process waits for the others.
TIMEOUT = "EVERGRAM_PROCESS_TIMEOUT"
# The first process may write a large checkpoint for long while the others wait.
SECONDS = 3600.0
# Between the seeds of processes whose modules draw at random, as dropout does.
SEEDS_APART = 7_919_000_003


class ProcessCollectives(Collectives):
    """The operations of the processes of torch's default group, which must be initialised.

    Args:
        device: where what has no device yet is exchanged: "cuda" with NCCL.
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
        # What pads a process's rows adds zero to row 0.
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
        """Return the first process's tensor, on the CPU; others hand in one like it."""
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
        """Let a block exchange with the other processes.

        Raises: TrainingError: another process has ended, or did not answer in time.
        """
        try:
            yield
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise TrainingError(
                f"Process {self.rank} of {self.size} cannot go on: another process of this "
                f"command has ended or did not answer ({reason}). Its own message says why; start "
                "the same command again, with any number of processes, and it resumes."
            ) from error


def join_processes(device: torch.device) -> Collectives:
    """Return the operations of the processes that `torchrun` started; `ALONE` without it.

    Processes wait for each other for EVERGRAM_PROCESS_TIMEOUT seconds, an hour by default.

    Args:
        device: "cuda" makes it this process's own GPU, by LOCAL_RANK.
    Raises: TrainingError: the others cannot be reached, or there is no such GPU.
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
                f"machine, and set {TIMEOUT} to seconds or not at all."
            ) from error
        # The group may be gone by then: tests end theirs themselves.
        atexit.register(
            lambda: torch.distributed.is_initialized() and torch.distributed.destroy_process_group()
        )
    return ProcessCollectives(device)


def seed_of_process(encoder: Encoder, seed: int, collectives: Collectives) -> int:
    """Return this process's seed of torch's generator: another one in each process for a user's
    modules, whose dropout would be the same otherwise.

    Raises: TrainingError: the encoder's modules normalise by the batch.
    """
    if collectives.size == 1 or encoder.kind != "module":
        return seed  # graph encoders normalise over all entities, which every process embeds
    for name, module in encoder.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise TrainingError(
                f"The encoder's {name} is a {type(module).__name__}, whose statistics are of the "
                f"rows that a process has, and {collectives.size} processes share each batch; use "
                "LayerNorm, or train in one process."
            )
    return seed + SEEDS_APART * collectives.rank
