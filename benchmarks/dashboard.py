"""Make the picture in docs/dashboard.md: `python -m benchmarks.dashboard [OUT.png]`.

It shows a service over the synthetic data of `evergram demo`, with a consumer whose probe is run on
every upgrade, in chromium, after a client has read some vectors.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import uvicorn
from safetensors.torch import save_file
from torch import Tensor

from evergram.data.corpus import Vocabulary
from evergram.lineage.consumers import ConsumerRegistry, Probe
from evergram.lineage.lineage import Lineage
from evergram.releasing.demo import demo_recipe, rated_above_median
from evergram.releasing.probes import measured_probe, with_probes
from evergram.releasing.upgrade import train, upgrade
from evergram.serving.app import create_app
from evergram.serving.client import Client
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings
from evergram.training.corpora import load_corpus, split_for
from evergram.training.progress import Progress

CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT = 1280, 1600
# A version-0 consumer's own model may lose this much of its AUC.
ALLOWANCE = 0.03


def tell(lineage: Lineage, files: Path) -> None:
    """Make four versions, a team pinned to v0 with a probe, and one pinned to the label
    `stable`."""
    recipe = demo_recipe(None, [])
    corpus = load_corpus(recipe)
    ids, label = rated_above_median(split_for(recipe, corpus, 0).training)
    for version in range(len(recipe.model_dump()["split"]["versions"])):
        last = version == len(recipe.model_dump()["split"]["versions"]) - 1
        if version == 0:
            lineage.publish(train(recipe, corpus, progress=Progress()))
            lineage.label("stable", 0)
            _join(lineage, files, ids, label)
            continue
        artefact = upgrade(recipe, lineage, corpus, progress=Progress())
        # The last one is tried out first.
        lineage.publish(with_probes(artefact, lineage)[0], promote=not last)
    lineage.label("canary", lineage.newest)


def _join(lineage: Lineage, files: Path, ids: pa.Array, label: Tensor) -> None:
    """Register the consumers; the probe is fitted to every other candidate, and tested on the
    rest."""
    known, vectors = lineage.embeddings("candidate")
    mine = vectors[Vocabulary(known).rows(ids)].double()
    model, data = files / "probe.safetensors", files / "evaluation.parquet"
    save_file(_classifier(mine[::2], label[::2]), model)
    held = pa.array(range(1, len(ids), 2))
    pq.write_table(pa.table({"id": ids.take(held), "label": pa.array(label[1::2].numpy())}), data)
    probe = Probe(model=str(model), data=str(data), side="candidate", metric="auc")
    probe = measured_probe(lineage, "v0", probe)
    assert probe.baseline is not None
    least = round(probe.baseline.value - ALLOWANCE, 3)
    consumers = ConsumerRegistry.open(lineage.path)
    consumers.add(
        "catalogue-quality", "v0", lineage.resolve, probe=probe.model_copy(update={"min": least})
    )
    consumers.add("home-feed", "stable", lineage.resolve)
    consumers.add("newsletter", "v0", lineage.resolve)


def _classifier(vectors: Tensor, label: Tensor) -> dict[str, Tensor]:
    """Fit a logistic regression, with the same L2 on all standardised coordinates."""
    mean, scale = vectors.mean(0), vectors.std(0)
    weight = torch.zeros(vectors.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200)

    def closure() -> Tensor:
        optimiser.zero_grad()
        logit = ((vectors - mean) / scale) @ weight + bias
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, label.double())
        loss = loss + 0.01 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return {"weight": weight.detach(), "bias": bias.detach(), "mean": mean, "scale": scale}


def photograph(lineage: Path, out: Path) -> None:
    """Photograph the top of a service's page with chromium."""
    service = Service(lineage)
    app = create_app(service, ServiceSettings())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    try:
        _read_some(url)
        with tempfile.TemporaryDirectory() as profile:
            subprocess.run(
                [
                    CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                    "--disable-background-networking", "--disable-component-update",
                    "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}",
                    f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=3000",
                    f"--screenshot={out}", url,
                ],
                check=True, stderr=subprocess.DEVNULL, timeout=60,
            )  # fmt: skip
    finally:
        server.should_exit = True
        thread.join()


def _read_some(url: str) -> None:
    """Read vectors as a consumer does."""
    with Client(url) as client:
        for start in range(0, 100, 10):
            client.embed([*range(start, start + 10)], side="candidate", version=0)


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/dashboard.png")
    with tempfile.TemporaryDirectory() as folder:
        lineage = Lineage.create(Path(folder) / "lineage", "films")
        tell(lineage, Path(folder))
        photograph(lineage.path, out.resolve())


if __name__ == "__main__":
    main()
