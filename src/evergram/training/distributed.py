"""Training in many processes, which all run the same program, each on its share of every batch.

Each process's loss is a part of the whole batch's, and all parts add up to it, so that gradients
are summed. A mean over a share counts for its portion of the rows; what all of P processes compute
alike counts for 1/P. Clocks and files are the first process's alone, and it tells the others what
they say.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed

# Its functions keep the group that stands when they are imported, as torch._dynamo does later: the
# group then outlives `destroy_process_group`, and its threads abort the process as it ends.
import torch.distributed.nn.functional
from torch import Tensor, nn

from evergram.collectives import ALONE, Collectives, process_count
from evergram.data.sampling import Batch, Draw
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
        ids = self._gathered(gradient.indices()[0], most, kind)
        values = self._gathered(gradient.values(), most, kind)
        together = torch.cat(ids)[None], torch.cat(values)
        whole = torch.sparse_coo_tensor(*together, gradient.shape, check_invariants=False)
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
        atexit.register(_leave)
    return ProcessCollectives(device)


def _leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


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


Rows = TypeVar("Rows", Batch, Draw, Tensor)


@dataclass(frozen=True)
class Part(Generic[Rows]):
    """The rows that a process has of `size` rows, their place among all, and what they count for in
    a mean over all; where it has none, the first of all stands in and counts for nothing."""

    rows: Rows
    size: int
    place: slice
    portion: float

    def counted(self, weights: Tensor) -> Tensor:
        """Return weights of its rows as they are, or zero if a row only stands in."""
        return weights if self.portion else torch.zeros_like(weights)


def part_of(rows: Rows, size: int, collectives: Collectives) -> Part[Rows]:
    """Return a process's part of `size` rows that every process was given."""
    if collectives.size == 1:
        return Part(rows, size, slice(None), 1.0)
    place = collectives.share(size)
    count = place.stop - place.start
    own = place if count else slice(0, 1)
    return Part(_cut(rows, own), size, own, count / max(1, size))


def _cut(rows: Any, place: slice) -> Any:
    """Return some rows of a tensor, or of each tensor in a record."""
    if isinstance(rows, Tensor):
        return rows[place]
    values = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return replace(rows, **{n: v if v is None else v[place] for n, v in values.items()})


def learned_from(
    own: Part[Batch], query: Tensor, candidate: Tensor
) -> dict[str, tuple[Part[Draw], Tensor]]:
    """Return the entities of a process's pairs with their embeddings [B, D], detached, by side."""
    pairs = own.rows
    sides = {
        "query": (Draw(pairs.query, pairs.query_weight), query.detach()),
        "candidate": (Draw(pairs.candidate, pairs.candidate_weight), candidate.detach()),
    }
    return {
        side: (
            Part(draw, own.size, own.place, own.portion),
            rows if len(rows) == len(draw.ids) else rows[own.place],
        )
        for side, (draw, rows) in sides.items()
    }


# What a parameter has in a process where no gradient reached it, or a dense one.
NONE, DENSE = -1, -2


@torch.no_grad()
def sum_gradients(
    optimizers: Sequence[torch.optim.Optimizer], value: Tensor, collectives: Collectives
) -> Tensor:
    """Give every trained parameter the sum of the processes' gradients. Return the sum of `value`.

    Dense gradients are summed in one vector, together with `value`, a scalar; of a sparse one the
    touched rows are gathered.
    """
    if collectives.size == 1:
        return value
    parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    dense: list[nn.Parameter] = []
    for parameter, most in zip(parameters, _kinds(parameters, collectives), strict=True):
        if most == DENSE:
            dense.append(parameter)
        elif most != NONE:
            own = parameter.grad if parameter.grad is not None else _no_rows(parameter)
            parameter.grad = collectives.sparse_rows(own, most, "tables")
    return _sum_dense(dense, value, collectives)


def _kinds(parameters: Sequence[nn.Parameter], collectives: Collectives) -> list[int]:
    """Return NONE, DENSE or the largest number of touched rows of each parameter."""
    kinds = []
    for parameter in parameters:
        if parameter.grad is None:
            kinds.append(NONE)
        elif not parameter.grad.is_sparse:
            kinds.append(DENSE)
        else:
            parameter.grad = parameter.grad.coalesce()
            kinds.append(parameter.grad.values().shape[0])
    device = parameters[0].device if parameters else None
    mine = torch.tensor([kinds], dtype=torch.int64, device=device)
    all_kinds = collectives.rows(mine, collectives.size, "counts")
    most: list[int] = all_kinds.amax(0).tolist()
    is_dense: list[bool] = (all_kinds == DENSE).any(0).tolist()
    return [DENSE if dense else count for dense, count in zip(is_dense, most, strict=True)]


def _no_rows(parameter: Tensor) -> Tensor:
    ids = torch.zeros(1, 0, dtype=torch.int64, device=parameter.device)
    values = parameter.new_zeros(0, *parameter.shape[1:])
    empty = torch.sparse_coo_tensor(ids, values, parameter.shape, check_invariants=False)
    return empty.coalesce()


def _sum_dense(
    parameters: Sequence[nn.Parameter], value: Tensor, collectives: Collectives
) -> Tensor:
    """Sum dense gradients and a scalar in one vector a dtype; return the scalar's sum."""
    summed = value
    of_dtype = {value.dtype: [value.detach().reshape(1)]}
    owners: dict[torch.dtype, list[nn.Parameter]] = {value.dtype: []}
    for parameter in parameters:
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        of_dtype.setdefault(grad.dtype, []).append(grad.flatten())
        owners.setdefault(grad.dtype, []).append(parameter)
    for dtype, parts in of_dtype.items():
        flat = collectives.sum(torch.cat(parts), "layers")
        if dtype == value.dtype:
            summed, flat = flat[0], flat[1:]
        split = torch.split(flat, [p.numel() for p in owners[dtype]])
        for parameter, part in zip(owners[dtype], split, strict=True):
            parameter.grad = part.view_as(parameter).clone()
    return summed
