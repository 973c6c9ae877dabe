"""Settings of this process that make numerical work faster, for a block of it."""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

# glibc's numbers of what mallopt(3) sets, and its greatest value.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
MOST = 2**31 - 1
# What glibc allows of MMAP_MAX unless it is told, and the ends of what it learns by itself.
USUAL_MMAP_MAX, LEARNED_MMAP_THRESHOLD = 65_536, 32 * 2**20
# Bytes of parameters.
LARGE = 2**30
# Variables by which somebody has chosen how memory is allocated.
CHOSEN = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


@contextmanager
def while_training(parameters: Iterable[Tensor] = ()) -> Iterator[None]:
    """The settings of a training for a block: `no_denormals`, `kept_memory`, and on a GPU
    `ordered_sums`.

    Args:
        parameters: what is trained; where they are more than `LARGE`, memory is given back as ever,
            as little is to be gained beside them and what is kept may be wanted elsewhere.
    """
    trained = list(parameters)
    large = sum(p.numel() * p.element_size() for p in trained) > LARGE
    on_gpu = any(p.device.type == "cuda" for p in trained)
    with (
        no_denormals(),
        nullcontext() if large else kept_memory(),
        ordered_sums() if on_gpu else nullcontext(),
    ):
        yield


def _shared(
    setting: Callable[[], AbstractContextManager[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """Let blocks that are nested, or in several threads, enter a setting with the first of them and
    leave it with the last."""
    lock, entered, blocks = threading.Lock(), ExitStack(), 0

    @contextmanager
    @wraps(setting)
    def block() -> Iterator[None]:
        nonlocal blocks
        with lock:
            if not blocks:
                entered.enter_context(setting())
            blocks += 1
        try:
            yield
        finally:
            with lock:
                blocks -= 1
                if not blocks:
                    entered.close()

    return block


@_shared
@contextmanager
def ordered_sums() -> Iterator[None]:
    """Have a GPU add in the same order each time inside the block, so that a seed repeats its bits.

    Where torch knows no such algorithm it goes on with the one it has; what it would warn of is
    nothing that a user of a recipe could change. A process that asks for deterministic algorithms
    by itself keeps what it asked for.
    """
    if torch.are_deterministic_algorithms_enabled():
        yield
        return
    settings: Any = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory
    # torch warns of every product of matrices until cuBLAS has a workspace of its own.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*determinis", category=UserWarning)
            yield
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = fills


@contextmanager
def no_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero inside the block.

    Adagrad's tiny ones made a CPU step 20 times slower. The setting is restored at the end.
    """
    was = float(torch.tensor([1e-310], dtype=torch.float64) * 0.5) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was)


@_shared
@contextmanager
def kept_memory() -> Iterator[None]:
    """Reuse the memory of freed tensors inside the block, in place of asking the system anew.

    glibc gives every block above 32 MiB back at once, and each new one comes as pages of zeros that
    are made when they are first written: a quarter of a step whose tables are 80 MB. What was freed
    stays with the process until the block ends, but for more than 2 GiB at the heap's end.

    Nothing changes where the C library is another, or where a variable of the environment
    (`MALLOC_…`, `GLIBC_TUNABLES`, `LD_PRELOAD`) says that somebody chose an allocator's settings.
    """
    if (library := _glibc()) is None:
        yield
        return
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, MOST)
    try:
        yield
    finally:
        # glibc learns no more once it was told, so it is told the most that it would learn.
        library.mallopt(MMAP_MAX, USUAL_MMAP_MAX)
        library.mallopt(MMAP_THRESHOLD, LEARNED_MMAP_THRESHOLD)
        library.mallopt(TRIM_THRESHOLD, 2 * LEARNED_MMAP_THRESHOLD)
        library.malloc_trim(0)


@lru_cache
def _glibc() -> Any:
    """Return the C library, if it is glibc with the settings that it begins with; else None."""
    if any(name.startswith(CHOSEN) for name in os.environ):
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  (musl has a mallopt that does nothing)
        library.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
        library.malloc_trim.argtypes = [ctypes.c_size_t]
    except (AttributeError, OSError, TypeError):  # another system
        return None
    return library
