"""What the probe of a registered consumer is sensitive to."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evergram.data.corpus import Vocabulary
from evergram.errors import DataError
from evergram.evaluation.probes.probe_process import ProbeFiles, ProbeLimits, ProbeProcess
from evergram.lineage.consumers.record import Probe
from evergram.lineage.consumers.registry import ConsumerRegistry

# Objects of an evaluation file that a probe's sensitivity is a mean over; it is run on 2 D more
# rows for each.
ROWS = 512


def probe_sensitivity(
    registry: ConsumerRegistry, probe: Probe, entities: Vocabulary, vectors: Tensor, used: Tensor
) -> Tensor:
    """Return the mean input Fisher matrix of a probe, float64 [D, D].

    It is over the objects of its evaluation file, `ROWS` at most; the labels are not used. The
    model is run in a process of its own, as always.

    Args:
        entities: ids of the probe's side.
        vectors: [N, D] of the version that it reads.
        used: bool [N], the objects that alignment may see.
    Raises: DataError: none of its objects is among these, or the model cannot be run.
        IntegrityError: one of its files is damaged.
    """
    model, data = registry.probe_files(probe)
    files = ProbeFiles(model, probe.model_sha256, data, probe.data_sha256)
    with ProbeProcess(files, probe.metric, ProbeLimits.of_environment()) as process:
        rows = entities.rows(process.ids())
        known = torch.nonzero((rows >= 0) & used[rows.clamp(min=0)]).flatten()
        if not len(known):
            raise DataError(
                f"None of the objects of its evaluation file {data} is among those that this "
                "version can be aligned on."
            )
        if len(known) > ROWS:
            known = known[torch.linspace(0, len(known) - 1, ROWS).long()]
        here = np.zeros(len(rows), dtype=bool)
        here[known.numpy()] = True
        read = vectors[rows[known]].float().numpy()
        return torch.from_numpy(process.fisher(here, read))
