"""Process-wide settings for numerical work, for the duration of a `with` block."""

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

# Parameters of mallopt(3) in glibc, and the maximum value.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
MOST = 2**31 - 1
# glibc's default of MMAP_MAX, and the maximum of its dynamic MMAP_THRESHOLD.
USUAL_MMAP_MAX, LEARNED_MMAP_THRESHOLD = 65_536, 32 * 2**20
LARGE = 2**30  # bytes of parameters above which memory is not kept
# Prefixes of environment variables that configure an allocator.
CHOSEN = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


@contextmanager
def while_training(parameters: Iterable[Tensor] = ()) -> Iterator[None]:
    """The settings for training: `no_denormals`, `kept_memory`, and on a GPU `ordered_sums`.

    Args:
        parameters: the trained parameters. Above `LARGE` bytes, freed memory is returned to the
            system as usual, as reuse gains little and the memory may be needed elsewhere.
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
    """Share a setting among nested blocks and threads: the first enters it, the last leaves it."""
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
    """Make a GPU add in the same order each time, so that a seed gives the same bits.

    If torch has no deterministic algorithm for an operation, it uses another one; its warnings are
    suppressed, as users of a recipe could not act on them. If the process has already enabled
    deterministic algorithms, nothing is changed.
    """
    if torch.are_deterministic_algorithms_enabled():
        yield
        return
    settings: Any = torch.utils.deterministic
    fills = settings.fill_uninitialized_memory
    # Without this, torch warns about every matrix product.
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
    """Flush denormal numbers to zero, and restore the setting at the end. Denormal numbers from
    Adagrad made a step on a CPU 20 times slower."""
    before = float(torch.tensor([1e-310], dtype=torch.float64) * 0.5) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@_shared
@contextmanager
def kept_memory() -> Iterator[None]:
    """Reuse the memory of freed tensors instead of returning it to the system.

    By default, glibc returns every freed block above 32 MiB, and the kernel must zero the pages of
    each new one when they are first written: a quarter of a step with tables of 80 MB. Inside the
    block, the process keeps freed memory, except above 2 GiB at the end of the heap.

    Does nothing with another C library, or if an environment variable (`MALLOC_…`,
    `GLIBC_TUNABLES`, `LD_PRELOAD`) configures an allocator.
    """
    if (library := _glibc()) is None:
        yield
        return
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, MOST)
    try:
        yield
    finally:
        # Once set, glibc no longer adapts these, so set the maximum that it would adapt to.
        library.mallopt(MMAP_MAX, USUAL_MMAP_MAX)
        library.mallopt(MMAP_THRESHOLD, LEARNED_MMAP_THRESHOLD)
        library.mallopt(TRIM_THRESHOLD, 2 * LEARNED_MMAP_THRESHOLD)
        library.malloc_trim(0)


@lru_cache
def _glibc() -> Any:
    """Return the C library if it is glibc with default settings, or None."""
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
