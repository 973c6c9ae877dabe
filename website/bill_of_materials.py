"""The bill of materials of what is installed, in CycloneDX's JSON.

    python -m website.bill_of_materials --extras serve pgvector --out bom.json

https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from website.dependencies import (
    OURS,
    Dependency,
    dependencies,
    extras_of_ours,
    licence_of,
    missing,
    needed,
)


def bill_of_materials(extras: list[str]) -> dict[str, Any]:
    """Return the document of the package with some of its extras, as this environment has them.

    It has no time and no serial number, so that the same environment gives the same document.

    Raises: ValueError: there is no such extra, or something that it needs is not installed.
    """
    unknown = set(extras) - set(extras_of_ours())
    if unknown:
        allowed = ", ".join(extras_of_ours())
        raise ValueError(f"There is no extra {', '.join(sorted(unknown))}; there are {allowed}.")
    absent = set().union(*(missing(extra) for extra in ("", *extras)))
    if absent:
        names = ", ".join(sorted(absent))
        raise ValueError(f"Not installed, so the list would not be whole: {names}; install them.")
    parts = dependencies(extras)
    places = {part.name: _place(part.name, part.version) for part in parts}
    ours = distribution(OURS)
    own = _place(OURS, ours.version)
    direct = {canonicalize_name(requirement.name) for requirement in needed(OURS, extras)}
    needs = [(own, direct), *((places[part.name], set(part.needs)) for part in parts)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(OURS, ours.version, licence_of(ours).expression, "")},
        "components": [_component_of(part) for part in parts],
        "dependencies": [
            {"ref": place, "dependsOn": sorted(places[name] for name in names & places.keys())}
            for place, names in needs
        ],
    }


def _component_of(part: Dependency) -> dict[str, Any]:
    return _component(part.name, part.version, part.licence.expression, part.homepage)


def _component(name: str, version: str, licence: str, homepage: str) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _place(name, version),
        "name": name,
        "version": version,
        "purl": _place(name, version),
    }
    if licence:
        component["licenses"] = [{"expression": licence}]
    if homepage:
        component["externalReferences"] = [{"type": "website", "url": homepage}]
    return component


def _place(name: str, version: str) -> str:
    """Return a package's address, https://github.com/package-url/purl-spec."""
    return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"


def main(arguments: list[str] | None = None) -> None:
    """Write the document to a file, or print it."""
    parser = argparse.ArgumentParser(prog="python -m website.bill_of_materials")
    parser.add_argument("--extras", nargs="*", default=[], metavar="NAME", help="such as serve")
    parser.add_argument("--out", type=Path, help="a file; stdout where it is absent")
    options = parser.parse_args(arguments)
    try:
        text = json.dumps(bill_of_materials(options.extras), indent=1) + "\n"
    except ValueError as error:
        parser.error(str(error))
    if options.out is None:
        sys.stdout.write(text)
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)


if __name__ == "__main__":
    main()
