"""What Evergram's distribution depends on, and under which licences, as the environment has it.

Licences are those that each distribution's own metadata names (PEP 639, or the fields before it).
docs/security.md, "Supply chain", says how to have the page and the bill of materials.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = "evergram"
# Licences that ask for no more than to be named with the code that is under them. "any-OSI" (SPDX)
# lets the user choose any licence that OSI approved, MIT among them.
PERMISSIVE = {
    "any-OSI",
    *("0BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC"),
    *("MIT", "MIT-0", "MIT-CMU", "NCSA", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib"),
    *("Apache-2.0", "Apache-2.0 WITH LLVM-exception"),
}
# Runtime dependencies, of the package or of an extra that it serves with, that are not permissive
# or do not say their licence in words that a program reads; each with the reason to keep it.
EXCEPTIONS = {
    "certifi": "MPL-2.0: used as it is; only its own files, if changed, stay open",
    "daft": "the extra engines; its metadata names no licence, its licence file is Apache-2.0",
    "orjson": "MPL-2.0 AND (Apache-2.0 OR MIT): as certifi",
    "psycopg": "LGPL-3.0: the extra pgvector; loaded as a library that anybody can replace",
    "psycopg-binary": "LGPL-3.0: as psycopg",
    "tqdm": "MPL-2.0 AND MIT: as certifi",
}
# The words of older metadata, in the order in which they are looked for.
_WORDS = (
    (r"mozilla public license 2|mpl[- ]?2", "MPL-2.0"),
    (r"lesser general public license v3|lgpl[- v]?3|lgplv3", "LGPL-3.0"),
    (r"general public license|\bgpl", "GPL"),
    (r"apache", "Apache-2.0"),
    (r"\b3-clause bsd|bsd[- ]3|new bsd|modified bsd", "BSD-3-Clause"),
    (r"bsd[- ]2|simplified bsd", "BSD-2-Clause"),
    (r"\bbsd", "BSD-3-Clause"),
    (r"\bmit\b", "MIT"),
    (r"python software foundation|matplotlib|\bpsf", "PSF-2.0"),
    (r"\bisc\b", "ISC"),
    (r"historical permission notice|\bhpnd", "HPND"),
    (r"unlicense", "Unlicense"),
    (r"zlib", "Zlib"),
)


class Licence(NamedTuple):
    """A licence as an expression of SPDX; "" where the metadata names none."""

    expression: str

    @property
    def permissive(self) -> bool:
        """Whether all parts ask for no more than to be named; of alternatives, whether one does."""
        return bool(self.expression) and _holds(self.expression)


@dataclass(frozen=True)
class Dependency:
    """A distribution of the environment.

    Args:
        needs: canonical names of the distributions that it needs itself, without extras.
        extras: extras of ours that bring it; "" alone where the package itself does.
    """

    name: str
    version: str
    licence: Licence
    homepage: str
    needs: tuple[str, ...]
    extras: frozenset[str]


def licence_of(installed: Distribution) -> Licence:
    """Return the licence that a distribution's metadata names."""
    metadata = installed.metadata
    expression = _field(installed, "License-Expression")
    if expression:
        return Licence(expression)
    classifiers = [
        c.rpartition(" :: ")[2]
        for c in metadata.get_all("Classifier") or []
        if c.startswith("License ::")
    ]
    short = [line for line in _field(installed, "License").splitlines()[:1] if len(line) < 80]
    if short and _is_expression(short[0]):
        return Licence(short[0])
    for text in [*classifiers, *short]:
        for pattern, name in _WORDS:
            if re.search(pattern, text, re.IGNORECASE):
                return Licence(name)
    return Licence("")


def _field(installed: Distribution, name: str) -> str:
    """Return a field of the metadata; "" where it is absent."""
    return str((installed.metadata.get_all(name) or [""])[0])


def _is_expression(text: str) -> bool:
    known = PERMISSIVE | {"MPL-2.0", "LGPL-3.0-only", "LGPL-3.0-or-later"}
    return all(
        part in known for part in re.split(r" AND | OR ", text.replace("(", "").replace(")", ""))
    )


def _holds(expression: str) -> bool:
    """Evaluate an expression of SPDX: AND binds closer than OR, and brackets bind closest."""
    inner = re.compile(r"\(([^()]*)\)")
    while match := inner.search(expression):
        value = "MIT" if _holds(match[1]) else "not permissive"
        expression = expression[: match.start()] + value + expression[match.end() :]
    return any(
        all(part.strip() in PERMISSIVE for part in each.split(" AND "))
        for each in expression.split(" OR ")
    )


def extras_of_ours() -> list[str]:
    """Return the names of Evergram's extras."""
    return sorted(distribution(OURS).metadata.get_all("Provides-Extra") or [])


def needed(name: str, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """Yield what a distribution needs on this machine, with some of its extras."""
    wanted = ["", *extras]
    for requirement in _requirements(name):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted):
            yield requirement


@cache
def _requirements(name: str) -> tuple[Requirement, ...]:
    return tuple(Requirement(text) for text in distribution(name).requires or [])


def closure(extra: str = "") -> set[str]:
    """Return the canonical names of all that the package, with one of its extras, brings.

    Distributions that are not installed are left out: `missing` names them.
    """
    return {name for name in _walk(extra) if _installed(name)}


def missing(extra: str = "") -> set[str]:
    """Return what the package, with one of its extras, needs and the environment lacks."""
    return {name for name in _walk(extra) if not _installed(name)}


@cache
def _walk(extra: str) -> frozenset[str]:
    seen: set[tuple[str, str]] = set()
    waiting = [(OURS, part) for part in dict.fromkeys(("", extra))]
    while waiting:
        name, part = waiting.pop()
        if (name, part) in seen:
            continue
        seen.add((name, part))
        if not _installed(name):
            continue
        for requirement in needed(name, [part]):
            other = canonicalize_name(requirement.name)
            waiting += [(other, each) for each in ("", *requirement.extras)]
    return frozenset(name for name, _ in seen) - {OURS}


@cache
def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def dependencies(extras: Iterable[str]) -> list[Dependency]:
    """Return all that the package and some of its extras bring, by name."""
    brought: dict[str, set[str]] = {name: {""} for name in closure()}
    for extra in extras:
        for name in closure(extra):
            brought.setdefault(name, set()).add(extra)
    return [_dependency(name, brought[name]) for name in sorted(brought)]


def _dependency(name: str, extras: set[str]) -> Dependency:
    metadata = distribution(name).metadata
    links = [link.partition(", ") for link in metadata.get_all("Project-URL") or []]
    homepage = _field(distribution(name), "Home-page") or next((url for _, _, url in links), "")
    needs = sorted({canonicalize_name(r.name) for r in needed(name)} - {name})
    return Dependency(
        name,
        metadata["Version"],
        licence_of(distribution(name)),
        homepage,
        tuple(each for each in needs if _installed(each)),
        frozenset({""} if "" in extras else extras),
    )


def dependencies_page() -> str:
    """Return a page of all dependencies with their licences, by extra."""
    extras = [extra for extra in extras_of_ours() if extra != "dev"]
    parts = [
        "# Dependencies and their licences",
        "What `pip install evergram`, and each extra beside it, brings where this page was made, "
        "with the licence that its own metadata names. `make sbom` writes the same, with versions, "
        "as a bill of materials (CycloneDX). [Security](security.md#supply-chain) says which "
        "licences are exceptions.",
    ]
    own = closure()
    for extra in ["", *extras]:
        names, absent = closure(extra) - (own if extra else set()), missing(extra)
        parts.append(f"## `evergram[{extra}]`" if extra else "## `evergram`")
        if names:
            rows = [f"| {d.name} | {d.licence.expression or 'not said'} |" for d in _named(names)]
            parts.append("\n".join(["| | licence |", "|---|---|", *rows]))
        if absent:
            listed = ", ".join(sorted(absent))
            parts.append(f"Not installed where this page was made: {listed}, and what they bring.")
    return "\n\n".join(parts) + "\n"


def _named(names: set[str]) -> list[Dependency]:
    return [_dependency(name, set()) for name in sorted(names)]
