"""The dashboard's routes: one page, its own script and style, and the JSON that they show.

The page holds no data, so everybody may load it. The data needs the token that the service asks of
every request; the page asks its reader for one where the service answers 401.
"""

# No postponed annotations here: FastAPI reads them, and one of them names an argument.
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Response

from evergram.serving.dashboard.schemas import DashboardData

# The page loads nothing from elsewhere, runs nothing inline, and no other page may frame it.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}


def router(data: Callable[..., DashboardData | Awaitable[DashboardData]]) -> APIRouter:
    """Return the routes `/`, `/dashboard/…` for the files that it loads, and `/v1/dashboard`.

    Args:
        data: a FastAPI dependency that returns the data. It may take the request, and refuses one
            without a valid token by raising.
    """
    static = {
        path.name: (path.read_bytes(), TYPES[path.name.rpartition(".")[2]])
        for path in files("evergram.serving.dashboard").joinpath("static").iterdir()
        if path.name.rpartition(".")[2] in TYPES
    }
    routes = APIRouter()

    def send(name: str) -> Response:
        body, kind = static[name]
        return Response(body, media_type=kind, headers=HEADERS)

    @routes.get("/", include_in_schema=False)
    def page() -> Response:
        return send("dashboard.html")

    @routes.get("/dashboard/{name}", include_in_schema=False)
    def part(name: str) -> Response:
        if name not in static:
            raise HTTPException(404, "The dashboard has no such file.")
        return send(name)

    @routes.get("/v1/dashboard", summary="What the dashboard shows")
    def dashboard(
        shown: Annotated[DashboardData, Depends(data)], response: Response
    ) -> DashboardData:
        response.headers["Cache-Control"] = "no-store"
        return shown

    return routes
