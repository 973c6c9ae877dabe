"""[BC]'s Table 3 on MovieLens, as the reproduction has it, for the documents."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from reproduction.bc.table3 import EXPERIMENT, corpus_table
from reproduction.catalogue import runs_of
from reproduction.experiment import Table
from reproduction.report.markdown import table
from reproduction.run import jobs_of, run_all

from evergram.training import Progress
from reproduction import results

CORPUS = "movielens-25m-head"
SEEDS = range(5)


def section() -> str:
    """Compare the methods; seeds whose results are kept are read."""
    return made(CORPUS, "small", SEEDS, results.FOLDER)


def tiny() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return made("synthetic", "tiny", range(1), Path(folder))


def made(corpus: str, preset: str, seeds: Sequence[int], folder: Path) -> str:
    """Return the columns of ours, for one corpus of a preset."""
    jobs = [job for job in jobs_of(EXPERIMENT, preset, seeds) if job.training.label == corpus]
    list(run_all(jobs, folder, Progress()))
    whole = corpus_table(runs_of(EXPERIMENT, preset, folder), corpus)
    ours = [place for place, name in enumerate(whole.header) if not name.startswith("theirs")]
    rows = [[row[place] for place in ours] for row in whole.rows]
    return table(Table("", [whole.header[place] for place in ours], rows))
