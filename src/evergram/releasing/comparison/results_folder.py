"""The folder of a comparison's results, which belongs to one recipe."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evergram.atomic_files import replace_file
from evergram.data.corpus import Corpus
from evergram.errors import RecipeError
from evergram.training.recipe import flat

# Keys of [compare] that say how much is run; they change nothing of what has been run.
EXTENT = ("methods", "seeds", "lambdas", "lambda_methods")


def claim_folder(out: Path, recipe: Mapping[str, Any], corpus: Corpus, *, fresh: bool) -> None:
    """Record in `out` the recipe and the data that its results are of.

    Args:
        recipe: as JSON.
        fresh: remove what another recipe has left there.
    Raises: RecipeError: it holds the results of another recipe.
    """
    digest = hashlib.sha256()
    for name in ("query", "candidate", *(["value"] if corpus.has_values else [])):
        digest.update(corpus.column(name).numpy().tobytes())
    compare = {key: value for key, value in recipe["compare"].items() if key not in EXTENT}
    mine = flat({**recipe, "compare": compare, "corpus": digest.hexdigest()})
    path = out / "recipe.json"
    if out.exists() and not out.is_dir():
        raise RecipeError(f"{out} is a file; a comparison is written into a folder.")
    if path.exists():
        theirs = _read(path)
        changed = sorted(k for k in {**mine, **theirs} if mine.get(k) != theirs.get(k))
        if not changed:
            return
        if not fresh:
            raise RecipeError(
                f"{out} holds the results of another recipe ({', '.join(changed[:5])} changed); "
                "choose another folder, or remove them with --fresh."
            )
        for left in out.glob("seed-*"):
            shutil.rmtree(left)
    replace_file(path, json.dumps(mine, indent=2).encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        recorded: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path} cannot be read ({error}); choose another folder.") from error
    return recorded
