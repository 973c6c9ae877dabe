"""Who asks, and which versions they may read."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evergram.errors import LineageError, UnknownVersionError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.http.errors import RefusedError
from evergram.serving.settings import Settings


class Versions(Protocol):
    """What is asked of a lineage here."""

    @property
    def readable(self) -> list[int]: ...

    @property
    def labels(self) -> dict[str, int]: ...

    def resolve(self, what: int | str | None) -> int: ...


@dataclass(frozen=True)
class Access:
    """What one request may do.

    Args:
        name: of the consumer; "admin", or "" where no token is needed.
        default: what is read where no version is named; None is production.
        allowed: versions and labels that may be read; None is all.
    """

    name: str
    default: str | None = None
    allowed: tuple[str, ...] | None = None

    @property
    def admin(self) -> bool:
        return self.allowed is None

    def readable(self, lineage: Versions) -> set[int]:
        """The versions that it may read now. A label that has moved has moved here too."""
        if self.allowed is None:
            return set(lineage.readable)
        found = set()
        for what in self.allowed:
            try:
                found.add(lineage.resolve(what))
            except LineageError:  # a label that is no more, a version that was retired
                continue
        return found

    def version(self, lineage: Versions, what: int | str | None) -> int:
        """The number of what is asked for; the default where that is None.

        A consumer is told the same of a version that it may not read, whether there is one or not.

        Raises: UnknownVersionError: there is none, of what it may read. RefusedError: it may not be
            read.
        """
        if self.allowed is None:
            return lineage.resolve(what)
        mine = self.readable(lineage)
        asked = self.default if what is None else what
        try:
            number = lineage.resolve(asked)
        except LineageError:
            number = None
        if number in mine:
            return number
        if _plain(asked) in self.allowed:
            raise UnknownVersionError(
                f"There is no version {asked!r} any more; this token may read {_listed(mine)}."
            )
        raise RefusedError(
            403,
            "forbidden_version",
            f"This token may not read version {asked!r}; it may read {_listed(mine)}. "
            "'evergram consumer-pin' moves it to another.",
        )

    def require_admin(self, what: str) -> None:
        """Raises: RefusedError: a consumer's token."""
        if not self.admin:
            raise RefusedError(
                403, "forbidden", f"{what} is for the administrator; ask with that token."
            )


def authenticate(
    settings: Settings, roll: ConsumerRegistry, tokens: bool, headers: Sequence[str]
) -> Access:
    """Return who sent the headers `Authorization`.

    Args:
        tokens: whether a consumer has one.
    Raises: RefusedError: a token is needed, this one is not known, or there are several: a proxy
        before the service may have looked at another one than it would.
    """
    if len(headers) > 1:
        raise RefusedError(
            400, "several_tokens", "The header 'Authorization' was sent more than once; send one."
        )
    if settings.is_open(tokens):
        return Access("")
    scheme, _, token = (headers[0] if headers else "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise RefusedError(
            401, "no_token", "A token is needed: send the header 'Authorization: Bearer TOKEN'."
        )
    token = token.strip()
    if settings.admin_token is not None and hmac.compare_digest(
        token.encode(), settings.admin_token.encode()
    ):
        return Access("admin")
    known = roll.authenticate(token)
    if known is None:
        raise RefusedError(
            401,
            "unknown_token",
            "This token is not known; 'evergram consumer-token' issues one.",
        )
    return Access(known.name, known.pinned, tuple(known.allowed))


def _plain(what: int | str | None) -> str:
    """Write a version as consumers' rights name it: "v0", or a label."""
    text = str(what).removeprefix("v")
    return f"v{int(text)}" if text.isascii() and text.isdigit() else str(what)


def _listed(versions: set[int]) -> str:
    return ", ".join(f"v{n}" for n in sorted(versions)) or "none"
