"""Score each method's versions with consumers fitted to version 0."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from evergram.atomic_files import replace_file
from evergram.data.corpus import Corpus
from evergram.encoders.encoder import SIDES
from evergram.lineage.lineage import Lineage
from evergram.releasing.past_versions import known_vectors
from evergram.training.checkpoint import load_encoder
from evergram.training.progress import Progress
from reproduction.comparison.consumer_classifiers import (
    ConsumerClassifiers,
    ConsumerInputs,
    choose_consumer,
    fit_consumers,
)
from reproduction.comparison.consumer_tasks import ConsumerTask, Examples
from reproduction.comparison.settings import REFERENCE, CompareSettings

Vectors = Mapping[str, Tensor]


class ConsumerScores:
    """The consumer scores of one seed's runs. Fitted consumers and scores are saved in files.

    Args:
        folder: the folder of the files.
        training: the corpus at t_k of each version k.
    """

    def __init__(
        self,
        folder: Path,
        settings: CompareSettings,
        tasks: Sequence[ConsumerTask],
        training: Sequence[Corpus],
        device: torch.device,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.tasks = tasks
        self.training = training
        self.device = device

    def of(self, lineages: Mapping[str, Lineage], progress: Progress) -> dict[str, Any]:
        """Return, for each lineage by name (which must include "keep-all"): `auc` of each consumer
        by task and version; `error`, mean ‖z̃_0 − z_0‖₂ by version; `known`, the share of entities
        that M_0 can embed, over which the error is averaged.

        Source: [BC] §4, metrics 2 and 3.
        """
        versions = range(len(self.training))
        first = load_encoder(lineages[REFERENCE], 0)
        missing = {
            k: [name for name in lineages if not self._path(name, k).exists()] for k in versions
        }
        consumers: dict[str, ConsumerClassifiers] = {}
        if any(missing.values()):
            early = [known_vectors(first, self.training[k])[0] for k in (0, 1)]
            with progress.task("consumers", len(self.tasks)) as bar:
                for task in self.tasks:
                    consumers[task.name] = self._consumers(task, early)
                    bar.advance(1, len(task.training))
                    bar.describe(task.name, consumer=task.name)
        for k, names in missing.items():
            if not names:
                continue
            past, known = known_vectors(first, self.training[k])
            for name in names:
                # Keep-All's consumers read M_0 itself.
                read = past if name == REFERENCE or not k else self._read(lineages[name], k)
                scores = {
                    "auc": {
                        task.name: consumers[task.name].auc(*self._on(task.tests[k], read))
                        for task in self.tasks
                        if k in task.tests
                    },
                    "error": _distance(read, past, known),
                    "known": float(torch.cat([known[s] for s in SIDES]).float().mean()),
                }
                replace_file(self._path(name, k), json.dumps(scores).encode())
        return {name: self._collected(name) for name in lineages}

    def _collected(self, name: str) -> dict[str, Any]:
        """Read the files of one lineage, by version."""
        scores = {k: json.loads(self._path(name, k).read_text()) for k in range(len(self.training))}
        return {
            "auc": {
                task.name: {k: scores[k]["auc"][task.name] for k in task.tests}
                for task in self.tasks
            },
            "error": {k: f["error"] for k, f in scores.items()},
            "known": {k: f["known"] for k, f in scores.items()},
        }

    def _read(self, lineage: Lineage, k: int) -> Vectors:
        """Return z̃_0 of the entities at t_k: version k mapped through the chain."""
        new, _ = known_vectors(load_encoder(lineage, k), self.training[k])
        return {side: lineage.chain.apply(new[side], k, 0) for side in SIDES}

    def _on(self, examples: Examples, vectors: Vectors) -> tuple[ConsumerInputs, Tensor]:
        sides = list(examples.rows)
        return (
            ConsumerInputs(
                tuple(vectors[side].to(self.device) for side in sides),
                tuple(examples.rows[side].to(self.device) for side in sides),
            ),
            examples.label.to(self.device),
        )

    def _consumers(self, task: ConsumerTask, early: Sequence[Vectors]) -> ConsumerClassifiers:
        """Return a task's consumers, loaded from a file or fitted to M_0's embeddings."""
        path = self.folder / "consumers" / f"{task.name}.safetensors"
        sets = [self._on(e, early[e.version]) for e in (task.training, task.validation)]
        loaded = _load(path, sets[0][0].dim)
        if loaded is not None:
            return loaded.to(self.device)
        settings = self.settings
        hidden, dropout = choose_consumer(
            *sets, hidden=settings.hidden, dropout=settings.dropout, epochs=settings.epochs
        )
        seeds = range(settings.consumers)
        consumers, reached = fit_consumers(
            *sets, seeds=seeds, hidden=hidden, dropout=dropout, epochs=settings.epochs
        )
        facts = {"hidden": hidden, "dropout": consumers.dropout, "seeds": consumers.seeds}
        state = {k: v.cpu().contiguous() for k, v in consumers.state_dict().items()}
        metadata = {"facts": json.dumps({**facts, "validation_auc": reached})}
        replace_file(path, save(state, metadata=metadata))
        return consumers

    def _path(self, name: str, k: int) -> Path:
        return self.folder / "measured" / name / f"{k}.json"


def _load(path: Path, dim: int) -> ConsumerClassifiers | None:
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError:
        return None
    consumers = ConsumerClassifiers(dim, facts["hidden"], facts["dropout"], facts["seeds"])
    consumers.load_state_dict(state)
    return consumers.requires_grad_(False).eval()


def _distance(read: Vectors, past: Vectors, known: Vectors) -> float:
    """Return the mean ‖z̃_0 − z_0‖₂ over the entities of both sides that M_0 can embed."""
    rows = [(read[side][known[side]], past[side][known[side]]) for side in SIDES]
    return float(torch.cat([(new - old).norm(dim=1) for new, old in rows]).double().mean())
