"""A Hugging Face Hub that is a folder, behind the methods of `huggingface_hub.HfApi`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import pytest


@dataclass
class HubFolder:
    """Keeps the commits of repositories as folders; a revision is a commit or a branch.

    Args:
        root: where they are.
    """

    root: Path
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> HubFolder:
        """Stand in for HfApi until the test ends."""
        import huggingface_hub

        def api(**options: Any) -> HubFolder:
            self.calls.append(("HfApi", options))
            return self

        monkeypatch.setattr(huggingface_hub, "HfApi", api)
        return self

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.calls.append(("create_repo", {"repo_id": repo_id, **options}))
        self.branches.setdefault((repo_id, "main"), "")

    def create_branch(self, repo_id: str, *, branch: str, exist_ok: bool) -> None:
        assert exist_ok
        self.branches.setdefault((repo_id, branch), self.branches[repo_id, "main"])

    def upload_folder(
        self,
        *,
        repo_id: str,
        folder_path: Path,
        revision: str | None,
        allow_patterns: list[str],
        commit_message: str,
    ) -> Any:
        from huggingface_hub import CommitInfo

        branch = repo_id, revision or "main"
        before = self.branches[branch]
        commit = f"{len(list(self.root.glob('*'))):040x}"
        if before:
            shutil.copytree(self.root / before, self.root / commit)
        copied(Path(folder_path), self.root / commit, allow_patterns)
        self.branches[branch] = commit
        self.calls.append(("upload_folder", {"commit_message": commit_message}))
        return CommitInfo(
            commit_url=f"https://huggingface.co/{repo_id}/commit/{commit}",
            commit_message=commit_message,
            commit_description="",
            oid=commit,
        )

    def snapshot_download(
        self, repo_id: str, *, revision: str | None, allow_patterns: list[str]
    ) -> str:
        if (repo_id, "main") not in self.branches:
            raise refusal("RepositoryNotFoundError", 404)
        commit = self.branches.get((repo_id, revision or "main"), revision or "")
        if not (self.root / commit).is_dir():
            raise refusal("RevisionNotFoundError", 404)
        cache = self.root.with_name("cache") / commit
        copied(self.root / commit, cache, allow_patterns)
        return str(cache)


def copied(source: Path, target: Path, patterns: list[str]) -> None:
    """Copy the files whose names match one of the patterns."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if any(fnmatch(path.name, pattern) for pattern in patterns):
            shutil.copy(path, target)


def refusal(name: str, status: int) -> Exception:
    """Return an error of the library, as the Hub's answer makes it."""
    from huggingface_hub import errors

    response = httpx.Response(status, request=httpx.Request("GET", "https://hub.test/api"))
    error: Exception = getattr(errors, name)(f"{status} from the Hub", response=response)
    return error
