"""The service's paths, from its OpenAPI description."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any


def openapi() -> dict[str, Any]:
    """Return the description of a service of a tiny lineage, trained for it: one second."""
    import evergram
    from evergram.serving import Service, create_app

    tiny = {"kind": "synthetic", "queries": 60, "candidates": 40, "interactions": 600}
    recipe = evergram.Recipe.of({"name": "tiny", "data": tiny, "training": {"epochs": 1}})
    with tempfile.TemporaryDirectory() as folder:
        lineage = evergram.Lineage.create(Path(folder) / "tiny", recipe.name)
        evergram.publish(lineage, evergram.train(recipe, progress=False))
        described: dict[str, Any] = create_app(Service(lineage.path)).openapi()
    return described


def http_page(description: dict[str, Any]) -> str:
    """Return a page of every path: what it does, what it takes, what it answers."""
    parts = [
        "# HTTP, path by path",
        "From the service's own OpenAPI description, which it has at `/openapi.json`. "
        "[The service](serving.md) explains it with examples.",
    ]
    schemas = description.get("components", {}).get("schemas", {})
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            parts.append(f"## `{method.upper()} {path}`")
            parts += [
                text for text in (operation.get("summary"), operation.get("description")) if text
            ]
            for parameter in operation.get("parameters", []):
                needed = ", required" if parameter.get("required") else ""
                parts.append(
                    f"- `{parameter['name']}` ({parameter['in']}{needed}): "
                    f"{parameter.get('description', '')}"
                )
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if body:
                parts.append(_fields(body["schema"], schemas))
            answers = [
                f"| {code} | {_line(a)} |" for code, a in sorted(operation["responses"].items())
            ]
            parts.append("| answer | |\n|---|---|\n" + "\n".join(answers))
    return "\n\n".join(parts) + "\n"


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return a table of a body's fields."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    rows = [
        f"| `{name}` | {_kind(value)} | {'required' if name in required else ''} | {_line(value)} |"
        for name, value in schema.get("properties", {}).items()
    ]
    return "| field | type | | |\n|---|---|---|---|\n" + "\n".join(rows)


def _kind(value: dict[str, Any]) -> str:
    """Return a schema's type in words."""
    if "$ref" in value:
        return f"`{value['$ref'].rpartition('/')[2]}`"
    either = value.get("anyOf") or value.get("oneOf")
    if either:
        return " or ".join(dict.fromkeys(_kind(each) for each in either))
    if value.get("type") == "array":
        return f"list of {_kind(value.get('items', {}))}"
    return str(value.get("type", value.get("const", "any")))


def _line(value: dict[str, Any]) -> str:
    return " ".join(str(value.get("description", "")).split()).replace("|", "\\|")
