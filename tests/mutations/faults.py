"""Small faults, each of which the tests named beside it must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One change to one file of the package.

    Args:
        file: below `src/evergram`.
        old, new: the text that is replaced, which the file has once, and what replaces it.
        tests: files or folders below `tests/` that must fail.
    """

    file: str
    old: str
    new: str
    tests: str


FAULTS = (
    # The penalty and its estimators.
    Fault("gramian/penalty.py", "form[:, dim:].mul_(-2)", "form[:, dim:].mul_(2)", "gramian"),
    Fault(
        "gramian/penalty.py",
        "form = form * (grad * (2 * ctx.strength))",
        "form = form * (grad * ctx.strength)",
        "gramian",
    ),
    Fault(
        "gramian/penalty.py",
        "_against(query, candidate.moment, ridge, strength)",
        "_against(query, query.moment, ridge, strength)",
        "gramian",
    ),
    Fault("gramian/sogram.py", "self.missing * (1 - rate)", "self.missing * rate", "gramian"),
    Fault("gramian/estimator.py", "values.clamp(min=0)", "values.abs()", "gramian"),
    Fault(
        "gramian/estimator.py",
        "weighted = u * (rows.weights / rows.size)[:, None]",
        "weighted = u * (rows.weights / len(u))[:, None]",
        "gramian training/test_processes.py",
    ),
    Fault("gramian/sogram.py", "rate / (2 - rate)", "rate / 2", "gramian"),
    Fault(
        "gramian/sogram.py",
        "self.rates[self.scores.argmin()]",
        "self.rates[self.scores.argmax()]",
        "gramian",
    ),
    # Backward transforms.
    Fault(
        "compatibility/chain.py",
        "weight @ last[0], weight @ last[1] + offset",
        "weight @ last[0], last[1] + offset",
        "compatibility",
    ),
    Fault(
        "compatibility/alignment_loss.py",
        "weight * (step.T @ metric @ step)",
        "weight * (step.T @ step)",
        "compatibility",
    ),
    Fault(
        "compatibility/alignment_loss.py",
        "weight = new_dim / old_dim if",
        "weight = old_dim / new_dim if",
        "compatibility",
    ),
    Fault(
        "compatibility/alignment_loss.py",
        "else 3 * value / old_dim",
        "else value / old_dim",
        "compatibility training",
    ),
    Fault(
        "compatibility/closed_forms.py",
        "s * spectrum.cross / (s * e + rho)",
        "s * spectrum.cross / (e + rho)",
        "compatibility",
    ),
    Fault(
        "compatibility/closed_forms.py",
        "moments.mean_old - weight @ moments.mean_new",
        "moments.mean_old + weight @ moments.mean_new",
        "compatibility",
    ),
    Fault(
        "compatibility/closed_forms.py",
        "term = term - excess",
        "term = term + excess",
        "compatibility",
    ),
    Fault(
        "compatibility/certificate.py",
        "weight = chain.matrix(i - 1, target)",
        "weight = chain.matrix(i, target)",
        "compatibility",
    ),
    Fault(
        "compatibility/certificate.py",
        "self.objects >= LEAST_OBJECTS",
        "self.objects > 0",
        "compatibility lineage releasing",
    ),
    # Losses, sampling and metrics.
    Fault("tasks/kinds.py", "return 0.5 * (score", "return (score", "tasks"),
    Fault("tasks/task.py", "other - score(encoded)", "score(encoded) - other", "tasks"),
    Fault("tasks/task.py", "logits - self.frequency", "logits + self.frequency", "tasks"),
    Fault("tasks/task.py", ".clamp(min=self.rate)", ".clamp(max=self.rate)", "tasks"),
    Fault(
        "tasks/softmax_all.py",
        "(self.push * pushed - pulled)",
        "self.push * (pushed - pulled)",
        "tasks",
    ),
    Fault(
        "tasks/task.py",
        "objective = objective + 0.5 * value.detach()",
        "objective = objective + value.detach()",
        "tasks",
    ),
    Fault(
        "data/sampling.py",
        "chance = 1 / (active * degrees.double()[self.query])",
        "chance = 1 / (len(degrees) * degrees.double()[self.query])",
        "data/test_sampling.py",
    ),
    Fault(
        "data/sampling.py",
        "if not len(rejected):\n                break",
        "if len(rejected) or True:\n                break",
        "data/test_sampling.py",
    ),
    Fault(
        "data/split.py",
        "before = held_out.trained.has(",
        "before = ~held_out.trained.has(",
        "data/test_split.py",
    ),
    Fault(
        "evaluation/ranking.py",
        ">= score[some.to(device)]",
        "> score[some.to(device)]",
        "evaluation/test_ranking.py",
    ),
    Fault(
        "evaluation/ranking.py",
        "scores[row, column] = -torch.inf",
        "scores[row, column] = scores[row, column]",
        "evaluation/test_ranking.py",
    ),
    Fault(
        "evaluation/ranking.py",
        "size.clamp(max=k) - 1]",
        "size.clamp(max=k + 1) - 2]",
        "evaluation/test_ranking.py",
    ),
    # A lineage on disk.
    Fault(
        "atomic_files.py",
        "    sync(part)\n    part.replace(path)",
        "    part.replace(path)",
        "test_files_in_place.py lineage",
    ),
    Fault(
        "atomic_files.py",
        "    part.replace(path)\n    if sync_parent:\n        sync(path.parent)",
        "    part.replace(path)",
        "test_files_in_place.py lineage",
    ),
    Fault(
        "atomic_files.py",
        "        part.unlink(missing_ok=True)\n        # Some errors, such as",
        "        # Some errors, such as",
        "test_files_in_place.py lineage",
    ),
    Fault(
        "lineage/record.py",
        "if sha256(path) != published:",
        "if not path.stat().st_size:",
        "lineage/test_lineage.py",
    ),
    Fault(
        "file_content.py",
        'hashlib.file_digest(file, "sha256")',
        'hashlib.file_digest(file, "sha512")',
        "lineage/test_lineage.py",
    ),
    Fault(
        "lineage/record.py",
        'if written.pop("check") != _digest(written):',
        'if not written.pop("check"):',
        "lineage/test_files.py",
    ),
    Fault(
        "lineage/record.py",
        "if STABLE in self.labels:",
        "if STABLE not in self.labels and self.labels:",
        "lineage/test_labels.py",
    ),
    Fault(
        "lineage/record.py",
        "number == self.newest",
        "number == 0",
        "lineage/test_labels.py",
    ),
    Fault(
        "lineage/publication.py",
        "error = check_transform_on_canaries(artefact",
        "error = (lambda *_: None)(artefact",
        "lineage/test_publication.py",
    ),
    Fault(
        "lineage/lineage.py",
        "needed = {number, *record.labels.values()}",
        "needed = {number}",
        "lineage/test_labels.py",
    ),
    Fault(
        "lineage/view.py",
        "self._chain.apply(embeddings, self.source, self.version)",
        "self._chain.apply(embeddings, self.source, max(self.version, self.source - 1))",
        "lineage/test_lineage.py",
    ),
    # Stores.
    Fault(
        "stores/store.py",
        "if len(rows) > len(pc.unique(rows.ids)):",
        "if len(rows) < len(pc.unique(rows.ids)):",
        "stores/test_conformance.py",
    ),
    Fault(
        "stores/store.py",
        "np.flatnonzero(row_checks(rows) != checks)",
        "np.flatnonzero(row_checks(rows) == row_checks(rows) - 1)",
        "stores/test_rows.py",
    ),
    Fault(
        "stores/store.py",
        "scores + offsets[i]",
        "scores - offsets[i]",
        "stores/test_conformance.py",
    ),
    Fault(
        "stores/store.py",
        "key=lambda r: -r.version",
        "key=lambda r: r.version",
        "stores/test_rows.py",
    ),
    Fault(
        "stores/store.py",
        "np.lexsort((-hits.scores, -hits.versions))",
        "np.lexsort((-hits.scores, hits.versions))",
        "stores/test_rows.py",
    ),
    Fault(
        "stores/store.py",
        "(1 + int(odd[0]) * rows.version)",
        "(1 + int(odd[0]))",
        "stores/test_rows.py",
    ),
    Fault(
        "stores/table_per_version.py",
        "                if version != rows.version:\n",
        "                if version > rows.version:\n",
        "stores/test_conformance.py",
    ),
    Fault(
        "stores/snapshot_store.py",
        "                dead[rows] = True\n",
        "",
        "stores/test_snapshot.py",
    ),
    Fault(
        "stores/filters.py",
        "if condition.field not in allowed]",
        "if condition.field in ()]",
        "stores/test_adopted_tables.py",
    ),
    # Reading at a version.
    Fault(
        "retrieval/metric_search.py",
        "for rows in fetched if rows.version in of]",
        "for rows in fetched]",
        "retrieval/test_searches.py",
    ),
    Fault(
        "retrieval/metric_search.py",
        "return self.dim + self.target if",
        "return self.dim if",
        "retrieval/test_searches.py",
    ),
    Fault(
        "retrieval/metric_search.py",
        ".sum(axis=1) + fit.below",
        ".sum(axis=1)",
        "retrieval/test_searches.py",
    ),
    Fault(
        "stores/table_per_version.py",
        'store._set_fields({state: uuid4().hex, "moving": before})',
        'store._set_fields({state: "same", "moving": before})',
        "stores/test_conformance.py",
    ),
    Fault(
        "retrieval/fill.py",
        "version = lineage.production if version is None else version\n    file =",
        "version = lineage.newest if version is None else version\n    file =",
        "retrieval/test_stores_of_a_lineage.py",
    ),
    Fault(
        "retrieval/reader.py",
        "mapped = self.store(side, target), target < self",
        "mapped = self.store(side, target), target > self",
        "retrieval/test_adopted.py",
    ),
    # The service and its consumers.
    Fault(
        "serving/access.py",
        "if number in readable:",
        "if number is not None:",
        "serving/test_access.py",
    ),
    Fault(
        "serving/access.py",
        "if len(headers) > 1:",
        "if len(headers) > 2:",
        "serving/test_access.py",
    ),
    Fault(
        "serving/vector_routes.py",
        "if count > limit:",
        "if count > limit + 1:",
        "serving/test_routes.py",
    ),
    Fault(
        "releasing/probes.py",
        'value <= limit if probe.metric == "rmse" else value >= limit',
        'value < limit if probe.metric == "rmse" else value > limit',
        "releasing/test_consumers.py",
    ),
)
