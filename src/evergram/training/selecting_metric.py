"""The metric by which a recipe selects, for the candidates that its data has."""

from __future__ import annotations

from evergram.data.split import Split
from evergram.evaluation.ranking import discriminating, relevance_of
from evergram.training.progress import Progress
from evergram.training.recipe import Recipe


def with_selecting_metric(
    recipe: Recipe, split: Split, progress: Progress | None = None
) -> tuple[Recipe, list[str]]:
    """Return the recipe with a `training.metric` that can tell models apart on its selection pairs,
    and a sentence if it is another one.

    Args:
        progress: says that sentence; None says nothing.
    Raises: DataError: no metric can.
    """
    written, candidates = recipe.training.metric, len(split.training.candidates)
    relevance = relevance_of(split.training, split.selection)
    metric = discriminating(written, relevance, candidates)
    if metric == written:
        return recipe, []
    sentence = (
        f"{written} holds nearly all of the {candidates} candidates, whatever the model; "
        f"training.metric is {metric} here."
    )
    if progress is not None:
        progress.say(sentence)
    names = [metric if name == written else name for name in recipe.metrics]
    training = recipe.training.model_copy(update={"metric": metric})
    metrics = list(dict.fromkeys(names))
    return recipe.model_copy(update={"training": training, "metrics": metrics}), [sentence]
