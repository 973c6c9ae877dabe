"""The operations of several processes, by torch.distributed: gloo on the CPU, NCCL with CUDA."""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

# Its functions keep the group that stands when they are imported, as torch._dynamo does later: the
# group then outlives `destroy_process_group`, and its threads abort the process as it ends.
import torch.distributed.nn.functional
from torch import Tensor

from evergram.collectives import ALONE, Collectives, process_count
from evergram.errors import RecipeError, TrainingError

# A variable that torchrun sets, and ours: seconds that a process waits for the others.
LOCAL, TIMEOUT = "LOCAL_RANK", "EVERGRAM_PROCESS_TIMEOUT"
# The first process may write a large checkpoint for long while the others wait.
SECONDS = 3600.0
# More seconds than that, a lifetime, are no time to wait.
MOST = 10**9


class ProcessCollectives(Collectives):
    """The operations of the processes of torch's default group, which must be initialised.

    Args:
        device: where what has no device yet is exchanged: "cuda" with NCCL.
    Attributes:
        received: bytes that this process has received, by kind, counted by what a ring needs: P
            processes that sum n bytes receive 2n (P − 1)/P each.
        others_wait: True in the first process while the others wait for its answer.
        serve: what they do meanwhile with its requests, see `ask`.
    """

    serve: Callable[[dict[str, Any]], None] | None = None

    def __init__(self, device: torch.device | None = None) -> None:
        self.rank: int = torch.distributed.get_rank()
        self.size: int = torch.distributed.get_world_size()
        self.device: torch.device = torch.device("cpu") if device is None else device
        self.received: Counter[str] = Counter()

    def sum(self, tensor: Tensor, kind: str) -> Tensor:
        total = tensor.detach().clone().contiguous()
        with self.reaching_others():
            torch.distributed.all_reduce(total)
        self.received[kind] += 2 * _bytes(total) * (self.size - 1) // self.size
        return total

    def rows(self, mine: Tensor, count: int, kind: str) -> Tensor:
        counts = self.counts(count)
        parts = self._gathered(mine.detach()[: counts[self.rank]], max(counts), kind)
        return torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])

    def sparse_rows(self, gradient: Tensor, most: int, kind: str) -> Tensor:
        gradient = gradient.coalesce()
        # What pads a process's rows adds zero to row 0.
        ids = self._gathered(gradient.indices()[0], most, kind)
        values = self._gathered(gradient.values(), most, kind)
        together = torch.cat(ids)[None], torch.cat(values)
        whole = torch.sparse_coo_tensor(*together, gradient.shape, check_invariants=False)
        return whole.coalesce()

    def from_first(self, make: Callable[[], Any]) -> Any:
        if self.is_first:
            before, self.others_wait = self.others_wait, True
            try:
                answer = make()
            finally:
                self.others_wait = before
            return self._said({"answer": answer})["answer"]
        while "answer" not in (message := self._said({})):
            assert self.serve is not None
            self.serve(message)
        return message["answer"]

    def ask(self, request: dict[str, Any]) -> None:
        """Pass a request, JSON, to `serve` of the other processes, which wait in `from_first`; the
        first process asks, and then does its own part.

        Raises: TrainingError: they do not wait.
        """
        if not self.others_wait:
            raise TrainingError(
                "Tables that are divided among processes are read between epochs, in `on_start`, "
                "`on_epoch` and `on_evaluation`; inside of an epoch the other processes do not "
                "answer. Read them there, or set training.tables = 'memory'."
            )
        self._said(request)

    def _said(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the first process's message; what others hand in is not looked at."""
        text = json.dumps(message).encode() if self.is_first else b""
        size = torch.tensor([len(text)], device=self.device)
        self.broadcast(size)
        content = torch.zeros(int(size), dtype=torch.uint8)
        if self.is_first:
            content = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        content = content.to(self.device)
        self.broadcast(content)
        said: dict[str, Any] = json.loads(bytes(content.cpu().numpy().tobytes()))
        return said

    def broadcast(self, tensor: Tensor) -> None:
        """Replace a tensor by the first process's, in place."""
        with self.reaching_others():
            torch.distributed.broadcast(tensor, 0)

    def _gathered(self, mine: Tensor, most: int, kind: str) -> list[Tensor]:
        """Return the rows of each process, padded with zeros to `most`."""
        padded = mine.new_zeros(most, *mine.shape[1:])
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        with self.reaching_others():
            torch.distributed.all_gather(parts, padded)
        self.received[kind] += _bytes(padded) * (self.size - 1)
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
    Raises: RecipeError: a variable of the environment is not a number. TrainingError: the others
        cannot be reached.
    """
    if process_count() == 1:
        return ALONE
    if not torch.distributed.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(int(_number(LOCAL, 0)))
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        limit = timedelta(seconds=_number(TIMEOUT, SECONDS))
        try:
            torch.distributed.init_process_group(backend, timeout=limit)
        except (RuntimeError, ValueError) as error:
            raise TrainingError(
                f"The processes of this training cannot reach each other ({error}); start them all "
                "with torchrun, with the same --rdzv-endpoint on every machine."
            ) from error
        atexit.register(_leave)
    return ProcessCollectives(device)


# Meshes of divided tables: torch.distributed.tensor keeps them in its caches, and they the group.
MESHES: list[Any] = []


def _leave() -> None:
    for mesh in MESHES:
        getattr(mesh, "_pg_registry", {}).clear()
    MESHES.clear()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _number(name: str, default: float) -> float:
    """Return a variable of the environment. Raises: RecipeError: it is no number above or at 0."""
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MOST:
        raise RecipeError(
            f"{name} is {text!r}; it must be a number from 0 to {MOST:,}, or not be set."
        )
    return value


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
