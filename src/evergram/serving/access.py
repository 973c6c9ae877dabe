"""Who may read what: tokens and versions, and the hosts and web pages that may ask."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from evergram.errors import LineageError, UnknownVersionError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.serving.errors import ErrorResponse, RefusedError, error_response
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings, is_address, is_loopback

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::([0-9]{1,5}))?", re.I)
_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True)
class Access:
    """The rights of one request.

    Args:
        name: the consumer's name; "admin", or "" where no token is needed.
        default: version or label that is read where the request names none; None for production.
        allowed: versions and labels that may be read; None for all.
    """

    name: str
    default: str | None = None
    allowed: tuple[str, ...] | None = None

    def readable(self, lineage: Lineage) -> set[int]:
        """Return the versions that may be read now, labels followed to where they are now."""
        if self.allowed is None:
            return set(lineage.readable)
        versions = set()
        for what in self.allowed:
            try:
                versions.add(lineage.resolve(what))
            except LineageError:  # a label that is gone, a version that was retired
                continue
        return versions

    def version(self, lineage: Lineage, what: int | str | None) -> int:
        """Return the number of a version or label; the default's where it is None. A consumer gets
        the same answer for every version that it may not read, whether the version exists or
        not."""
        if self.allowed is None:
            return lineage.resolve(what)
        readable = self.readable(lineage)
        asked = self.default if what is None else what
        try:
            number = lineage.resolve(asked)
        except LineageError:
            number = None
        if number in readable:
            return number
        listed = ", ".join(f"v{n}" for n in sorted(readable)) or "none"
        # As consumers' rights name it: "v0", or a label.
        text = str(asked).removeprefix("v")
        if (f"v{int(text)}" if text.isascii() and text.isdigit() else str(asked)) in self.allowed:
            gone = f"There is no version {asked!r} any more; this token may read {listed}."
            raise UnknownVersionError(gone)
        what = f"This token may not read version {asked!r}; it may read {listed}."
        raise RefusedError(403, "forbidden_version", what)

    def require_admin(self, what: str) -> None:
        """Refuse a consumer's token."""
        if self.allowed is not None:
            refusal = f"{what} is for the administrator; ask with that token."
            raise RefusedError(403, "forbidden", refusal)


def authenticate(
    settings: ServiceSettings, consumers: ConsumerRegistry, tokens: bool, headers: Sequence[str]
) -> Access:
    """Return the rights of a request with these headers `Authorization`; `tokens`: whether any
    consumer has one. Several headers are refused, as a proxy may have checked another one."""
    if len(headers) > 1:
        several = "The header 'Authorization' was sent more than once; send one."
        raise RefusedError(400, "several_tokens", several)
    if settings.is_open(tokens):
        return Access("")
    scheme, _, token = (headers[0] if headers else "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        needed = "A token is needed: send the header 'Authorization: Bearer TOKEN'."
        raise RefusedError(401, "no_token", needed)
    admin = settings.admin_token
    if admin is not None and hmac.compare_digest(token.encode(), admin.encode()):
        return Access("admin")
    consumer = consumers.authenticate(token)
    if consumer is None:
        unknown = "This token is not known; 'evergram consumer token' issues one."
        raise RefusedError(401, "unknown_token", unknown)
    return Access(consumer.name, consumer.pinned, tuple(consumer.allowed))


class HostCheck:
    """Middleware that answers requests for a foreign host, or of a foreign page, with a refusal.

    A page whose name is made to lead to this machine (DNS rebinding) could read everything that an
    open service answers; only the host in the request gives it away. A page of another origin
    cannot read answers, but can send requests. A page has no token, so where the service asks for
    tokens any host may be named. Refusals are counted in `errors`, by their code.
    """

    def __init__(
        self, app: ASGIApp, service: Service, settings: ServiceSettings, errors: Counter
    ) -> None:
        self._app, self._service, self._settings = app, service, settings
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if scope["type"] == "http":
            try:
                self._check(Headers(raw=scope["headers"]), scope["method"], scope["http_version"])
            except RefusedError as error:
                refusal = error_response(error)
                self._errors.labels(refusal.code).inc()
                answer = refusal_response(refusal)
        await answer(scope, receive, send)

    def _check(self, headers: Headers, method: str, http: str) -> None:
        """Refuse a foreign host, and a foreign page."""
        match = _HOST.fullmatch(headers.get("host", "").strip())
        # In lower case and without brackets; "" where it cannot be read.
        host = "" if match is None else match[1].strip("[]").rstrip(".").lower()
        # HTTP/1.0 names no host, and no browser speaks it.
        if not self._is_ours(host) and (http != "1.0" or "host" in headers):
            todo = f"start it with '--allowed-host {host or 'NAME'}'"
            foreign = f"The host {host or 'none'!r} is not a name of this service; {todo}."
            raise RefusedError(421, "host", foreign)
        page = headers.get("origin")
        if page is not None:
            other = not self._is_own_page(page, host, match[2] if match else None)
        else:
            site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
            linked = method == "GET" and mode == "navigate"
            other = site in ("cross-site", "same-site") and not linked
        if other:
            what = f"A web page of {(page or 'another origin')[:80]!r} made this request"
            allowed = "only the service's own pages, and those of an '--allowed-host', may"
            raise RefusedError(403, "origin", f"{what}; {allowed}.")

    def _is_ours(self, host: str) -> bool:
        settings = self._settings
        if not settings.allowed_hosts and not settings.is_open(self._service.tokens):
            return True
        if not host:
            return False
        if is_loopback(host) or host == settings.host.lower() or self._is_listed(host, "*"):
            return True
        # Only a name can be made to lead elsewhere; an address cannot.
        return not is_loopback(settings.host) and is_address(host)

    def _is_listed(self, host: str, *anything: str) -> bool:
        return any(
            pattern in anything
            or host == pattern
            or (pattern.startswith("*.") and host.endswith(pattern[1:]))
            for pattern in map(str.lower, self._settings.allowed_hosts)
        )

    def _is_own_page(self, page: str, host: str, port: str | None) -> bool:
        try:
            parts = urlsplit(page)
            named = (parts.hostname or "").rstrip(".")
            asked = str(parts.port) if parts.port else _PORTS.get(parts.scheme)
        except ValueError:
            return False
        if parts.scheme not in _PORTS or not named:
            return False
        same = host and named == host and asked in ((port,) if port else _PORTS.values())
        return bool(same) or self._is_listed(named)


def refusal_response(refusal: ErrorResponse, **headers: str) -> Response:
    """Return a refusal as Starlette sends it, with more headers."""
    more = {**refusal.headers, **headers}
    return Response(refusal.body, refusal.status, more, "application/json")
