"""Progress on stderr: a bar on a terminal, else lines; JSON lines if the log format is JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from evergram.log_lines import LogFormat, log_format, write_line

# Without a terminal: seconds between two lines of a task that does not call `describe`.
EVERY = 10.0


class Handle:
    """One running task; `advance` is cheap enough to call for every batch."""

    def __init__(
        self, title: str, total: int, bar: Bar | None, quiet: bool, at_most: bool = False
    ) -> None:
        self._title = title
        self._at_most = at_most
        self._total = total
        self._bar = bar
        self._quiet = quiet
        self._done = 0
        self._written: int | None = None  # steps done at the last line
        self._examples = 0
        self._started = self._shown = monotonic()
        self._id = None if bar is None else bar.add_task(title, total=total, speed="", note="")

    def advance(self, steps: int, examples: int) -> None:
        self._done += steps
        self._examples += examples
        since = monotonic() - self._shown
        if self._bar is not None and self._id is not None and since >= 0.2:
            self._shown = monotonic()
            self._bar.update(self._id, completed=self._done, speed=self._speed())
        elif since >= EVERY:
            self._write()

    def describe(self, note: str, **figures: Any) -> None:
        """Report on an epoch, on the bar or as a line; `figures`: the note's numbers, for JSON."""
        if self._bar is not None and self._id is not None:
            self._bar.update(self._id, completed=self._done, note=note, speed=self._speed())
        else:
            self._write(note, **figures)

    def end(self) -> None:
        """Write a final JSON line unless the last line was up to date."""
        if self._written != self._done and log_format() is LogFormat.json:
            self._write()

    def _write(self, note: str = "", **figures: Any) -> None:
        self._shown, self._written = monotonic(), self._done
        if self._quiet:
            return
        elapsed = max(1e-9, monotonic() - self._started)
        left = elapsed / max(1, self._done) * (self._total - self._done)
        limit = "at most " if self._at_most else ""
        sentence = f"{self._title}: {note}{', ' if note else ''}{self._speed()}"
        write_line(
            "progress",
            f"{sentence}, {limit}{left:.0f} s left",
            task=self._title,
            **figures,
            done=self._done,
            total=self._total,
            examples_per_second=round(self._examples / elapsed, 1),
            seconds=round(elapsed, 1),
            seconds_left=round(left, 1),
        )

    def _speed(self) -> str:
        elapsed = max(1e-9, monotonic() - self._started)
        return f"{self._examples / elapsed:,.0f} examples/s"


class Progress:
    """Reports running tasks to stderr.

    Args:
        prefix: of every title.
        epochs: write a line per epoch; on a terminal, keep the bars of finished tasks.
    """

    def __init__(self, quiet: bool = False, prefix: str = "", epochs: bool = True) -> None:
        self._quiet = quiet
        self._prefix = prefix
        self._epochs = epochs

    def of(self, part: str) -> Progress:
        """Return a progress that puts `part` before the titles of tasks."""
        return Progress(self._quiet, f"{self._prefix}{part}, ", self._epochs)

    def without_epochs(self) -> Progress:
        """Return this progress without lines per epoch."""
        return Progress(self._quiet, self._prefix, epochs=False)

    def say(self, sentence: str) -> None:
        """Write a line that is not about a task."""
        if not self._quiet:
            write_line("message", f"{self._prefix}{sentence}")

    @classmethod
    def of_choice(cls, progress: Progress | bool) -> Progress:
        """Return a `Progress` unchanged; for True one that reports, for False a quiet one."""
        return cls(quiet=not progress) if isinstance(progress, bool) else progress

    @contextmanager
    def task(self, title: str, total: int, *, at_most: bool = False) -> Iterator[Handle]:
        """Report on a task inside the block. It has `total` steps; with `at_most` maybe fewer."""
        title = self._prefix + title
        console = Console(stderr=True)
        if self._quiet or not console.is_terminal or log_format() is LogFormat.json:
            handle = Handle(title, total, None, self._quiet or not self._epochs, at_most)
            yield handle
            handle.end()
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=console, transient=not self._epochs) as bar:
            yield Handle(title, total, bar, False, at_most)


QUIET = Progress(quiet=True)
