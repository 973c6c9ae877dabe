"""Sections of an upgrade's report: what it keeps of past versions, and of consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evergram.evaluation.ranking import parse_metric
from evergram.evaluation.reports.html_page import NONE, not_measured, paragraph, section, table
from evergram.evaluation.reports.model_figures import number
from evergram.evaluation.reports.version_facts import KeptPast, NotMeasured, VersionFacts


def kept_sections(facts: VersionFacts, metrics: Mapping[str, Any]) -> list[str]:
    """Return the sections of what is kept; none for version 0.

    Args:
        metrics: as they were published, with probes.
    """
    if not facts.kept:
        return []
    return [
        section("What past versions keep", *_readings(facts, metrics)),
        section("What past versions keep by popularity of candidates", *_strata(facts)),
        section("Certificate", *_certificate(facts, metrics)),
        section("Consumers", _probes(metrics)),
    ]


def _readings(facts: VersionFacts, metrics: Mapping[str, Any]) -> list[str]:
    rows, why = [], []
    for version, kept in facts.kept.items():
        reading = metrics.get("compatibility", {}).get(version, {})
        ranking, errors = reading.get("ranking", {}), reading.get("sampled", {}).get("errors", {})
        own, chain = (ranking.get(name, {}).get(facts.metric) for name in ("past", "chain"))
        drift = reading.get("drift", {}).get("held_out", {})
        new = kept.new if isinstance(kept, KeptPast) else None
        if isinstance(kept, NotMeasured):
            why.append(not_measured(f"Version {version}", kept.why))
        rows.append(
            [
                f"version {version}",
                f"{drift['relative']:.1%}" if drift.get("objects") else NONE,
                f"{reading['queries']:,}" if "queries" in reading else NONE,
                number(own, errors.get("past", {}).get(facts.metric)),
                number(chain, errors.get("chain", {}).get(facts.metric)),
                share(chain, own),
                number(new),
                share(chain, new),
            ]
        )
    header = [
        "read as",
        "error",
        "queries",
        "itself",
        "through the chain",
        "of itself",
        "this version",
        "of this version",
    ]
    text = (
        f"{facts.metric} on the test queries and the candidates that each past version knew: by "
        "that version itself, by this version through the chain of backward transforms, and by "
        "this version itself. The error is on objects that alignment never saw, over the length "
        "of their past vectors."
    )
    return [paragraph(text), table(f"{facts.metric} kept", header, rows), *why]


def share(value: float | None, of: float | None) -> str:
    """Return a value in percent of another one; "not measured" where that is not above 0."""
    if value is None or of is None or not of > 0:
        return NONE
    return f"{value / of:.1%}"


def _strata(facts: VersionFacts) -> list[str]:
    k, parts = parse_metric(facts.metric)[1], []
    for version, kept in facts.kept.items():
        if isinstance(kept, NotMeasured):
            parts.append(not_measured(f"Version {version}", kept.why))
            continue
        rows = []
        for stratum in kept.strata:
            own, chain, new = (stratum.values[name] for name in ("past", "chain", "new"))
            cells = [number(own), number(chain), share(chain, own), number(new)]
            if not stratum.measured:
                cells = [f"{NONE} (no test pairs)", *([NONE] * 3)]
            elif not own:
                cells[2] = f"{NONE} (version {version} finds none)"
            rows.append([stratum.name, f"{stratum.members:,}", f"{stratum.measured:,}", *cells])
        header = [
            "candidates",
            "how many",
            "test pairs",
            "itself",
            "through the chain",
            "kept",
            "this version",
        ]
        parts.append(table(f"Version {version}: recall@{k} of test pairs", header, rows))
    return parts


def _certificate(facts: VersionFacts, metrics: Mapping[str, Any]) -> list[str]:
    certificates = metrics.get("certificate", {})
    rows = []
    for version in facts.kept:
        one = certificates.get(version)
        names = ("estimate", "bound", "relative", "relative_bound")
        rows.append([f"version {version}", *(number((one or {}).get(name)) for name in names)])
    header = ["read as", "estimate", "bound", "estimate, relative", "bound, relative"]
    text = (
        "Root mean square error of reading this version as a past one: at most the bound, on "
        "objects like those that the steps were measured on; the estimate, if errors of steps are "
        "uncorrelated; relative to the length of the past vectors."
    )
    parts = [paragraph(text), table("Certificate", header, rows)]
    missing = [version for version in facts.kept if version not in certificates]
    if missing:
        why = (
            "A step on the way is not affine, or its error was measured on too few objects or not "
            "at all; `evergram lineage check` says which."
        )
        parts.append(not_measured(f"Certificate of version {', '.join(missing)}", why))
    return parts


def _probes(metrics: Mapping[str, Any]) -> str:
    probes = metrics.get("probes")
    if not probes:
        return not_measured("Consumers", "No consumer of this lineage has a probe.")
    rows = [
        [
            probe["consumer"],
            probe["pinned"],
            probe["metric"],
            number((probe["baseline"] or {}).get("value")),
            number(probe["value"]),
            number(probe["limit"]),
            f"{probe['objects']:,}",
            f"{probe['missing']:,}",
            probe.get("sentence") or "within its limit",
        ]
        for probe in probes
    ]
    header = ["consumer", "pinned", "metric", "when added", "now", "limit", "objects", "missing"]
    header.append("in words")
    return table("Probes, before and after", header, rows, words=[1, 2, 8])
