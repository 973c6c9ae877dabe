"""Folders of encoders on the Hugging Face Hub, through the library `huggingface_hub`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evergram.errors import DataError, ServiceError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# The Hub's own names: letters, digits, -, _ and ., in two parts of which neither begins with a
# sign, so that no path such as ../x is one.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_repository(name: str) -> bool:
    """Return whether a name can be that of a repository, OWNER/NAME."""
    return bool(_REPOSITORY.fullmatch(name)) and ".." not in name and "--" not in name


def upload(
    folder: Path,
    repository: str,
    files: Sequence[str],
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
    message: str | None = None,
) -> str:
    """Upload files of a folder as one commit, and return the commit's hash.

    Args:
        repository: OWNER/NAME; made if it is not there.
        files: names in the folder; no other is sent.
        private: of a repository that is made.
        revision: the branch; None is the main one.
        token: None is the one that huggingface_hub has stored, or HF_TOKEN.
        message: of the commit.
    Raises: DataError: the name is none of a repository; or huggingface_hub is not installed.
        ServiceError: the Hub refuses, or cannot be reached.
    """
    if not is_repository(repository):
        raise DataError(f"{repository[:100]!r} is no name of a repository; give OWNER/NAME.")
    api = _api(token)
    with _as_errors_of_ours(repository):
        api.create_repo(repository, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            revision=revision,
            allow_patterns=list(files),
            commit_message=message,
        )
    return str(commit.oid)


def local_folder(
    place: str | Path, files: Sequence[str], revision: str | None, token: str | None
) -> Path:
    """Return a folder, or the folder in huggingface_hub's cache that holds a repository's files.

    Args:
        place: a folder; where there is none of that name, OWNER/NAME.
        files: names in the repository; no other is fetched.
        revision: a commit, a tag or a branch; None is the main branch as it is now.
        token: as for `upload`.
    Raises: as `upload`. DataError: a revision of a folder is asked for.
    """
    if isinstance(place, str) and not Path(place).exists() and is_repository(place):
        api = _api(token)
        with _as_errors_of_ours(place):
            folder = api.snapshot_download(place, revision=revision, allow_patterns=list(files))
        return Path(str(folder))
    if revision is not None:
        raise DataError(
            f"{place} is a folder, which has no revisions; leave 'revision' out, or give "
            "OWNER/NAME of a repository on the Hub."
        )
    return Path(place)


def _api(token: str | None) -> HfApi:
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError:
        raise DataError(
            "The Hugging Face Hub needs huggingface_hub: pip install 'evergram[hub]'."
        ) from None
    return HfApi(token=token, library_name="evergram")


@contextmanager
def _as_errors_of_ours(repository: str) -> Iterator[None]:
    import httpx
    from huggingface_hub import errors

    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        what = "revision" if isinstance(error, errors.RevisionNotFoundError) else "repository"
        raise DataError(
            f"The Hub has no such {what} of {repository}, or the token may not read it; correct "
            "the name, or log in (hf auth login)."
        ) from error
    except (errors.HfHubHTTPError, errors.HFValidationError, httpx.HTTPError, OSError) as error:
        why = " ".join(str(error).split())[:300].rstrip(".")
        raise ServiceError(f"The Hub cannot be used for {repository}: {why}.") from error
