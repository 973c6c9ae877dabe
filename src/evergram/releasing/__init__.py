"""Turn a trained model into a published version.

Read in this order: `upgrade` (train a version, and the next with its backward transform), which
plans by `upgrade_plan` and then fits, measures and packages by `upgrade_steps`;
`backward_transform` (fit B_k); `past_version_report` (the new version read as a past one);
`publish` (the one gate); `probes` (consumers' own models). `files/` aligns files of vectors, and
`comparison/` runs the methods of [BC] side by side. `upgrade` and `publish` name their files here;
the functions are `evergram.upgrade` and `evergram.publish`.

[BC] Hu et al., Learning backward compatible embeddings, KDD 2022.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergram.releasing.comparison.compare import Comparison, compare
    from evergram.releasing.files.align import align
    from evergram.releasing.files.align_settings import AlignSettings
    from evergram.releasing.files.import_file import import_embeddings
    from evergram.releasing.files.transform_file import transform_file
    from evergram.releasing.probes import run_probes
    from evergram.releasing.publish import Published
    from evergram.releasing.upgrade import evaluate, train, upgrade_lost

__all__ = [
    "AlignSettings",
    "Comparison",
    "Published",
    "align",
    "compare",
    "evaluate",
    "import_embeddings",
    "run_probes",
    "train",
    "transform_file",
    "upgrade_lost",
]

# Imported when first used: to read a recipe does not wait for torch.
_HOME = {
    "AlignSettings": "evergram.releasing.files.align_settings",
    "Comparison": "evergram.releasing.comparison.compare",
    "Published": "evergram.releasing.publish",
    "align": "evergram.releasing.files.align",
    "compare": "evergram.releasing.comparison.compare",
    "evaluate": "evergram.releasing.upgrade",
    "import_embeddings": "evergram.releasing.files.import_file",
    "run_probes": "evergram.releasing.probes",
    "train": "evergram.releasing.upgrade",
    "transform_file": "evergram.releasing.files.transform_file",
    "upgrade_lost": "evergram.releasing.upgrade",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'evergram.releasing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
