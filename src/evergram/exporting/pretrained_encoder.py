"""A published encoder that embeds any object, from a lineage, a folder or the Hub."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from evergram.data.corpus import Corpus, Vocabulary
from evergram.encoders.encoder import Encoder
from evergram.encoders.encoder_inputs import (
    ID,
    checked_inputs,
    columns_of,
    missing_features,
    refuse_other_ids,
    refuse_unknown,
)
from evergram.encoders.factory import restore_encoder
from evergram.encoders.kinds import ENCODERS
from evergram.encoders.row_encoder import RowEncoder
from evergram.errors import DataError, LineageError, ServiceError
from evergram.exporting.encoder_folder import (
    CARD,
    READ_FILES,
    CardPlace,
    EncoderFacts,
    EncoderFolder,
    model_card,
    read_encoder_folder,
    write_encoder_folder,
)
from evergram.lineage.lineage import Lineage
from evergram.lineage.record import EncoderRecord

if TYPE_CHECKING:
    from huggingface_hub import HfApi


# The Hub's own names: letters, digits, -, _ and ., in two parts of which neither begins with a
# sign, so that no path such as ../x is one.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_repository(name: str) -> bool:
    """Return whether a name can be that of a repository, OWNER/NAME."""
    return bool(_REPOSITORY.fullmatch(name)) and ".." not in name and "--" not in name


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


SIDE = "candidate"
log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class PretrainedEncoder:
    """An encoder of a published version, or of a folder that `save_pretrained` wrote.

        encoder = PretrainedEncoder.of_version(Lineage.open("shop"))
        vectors = encoder.encode([17, 42], side="query")                     # [2, D]
        vectors = encoder.encode([{"genre": ["drama"]}], side="candidate")   # an object without id

    Args:
        module: the `nn.Module`, in evaluation mode.
        record: how the module is built, and its inputs.
        facts: which version it is of.
        metrics: what was measured when that was published.
    """

    module: Encoder
    record: EncoderRecord
    facts: EncoderFacts
    metrics: Mapping[str, Any]
    # The sides for which it has warned that features are missing.
    _warned: set[str] = field(default_factory=set, init=False, compare=False)

    @classmethod
    def of_version(cls, lineage: Lineage, version: int | str | None = None) -> Self:
        """Return the encoder of a version of a lineage, by default production's.

        Raises: UnknownVersionError. LineageError: the version came from a file and has no encoder.
        """
        number = lineage.resolve(version)
        record, state, vocabularies = lineage.encoder_parts(number)
        manifest = lineage.manifest(number)
        facts = EncoderFacts(
            name=manifest.name,
            version=number,
            fingerprint=manifest.fingerprint,
            dim=manifest.dim,
            created=manifest.created,
        )
        module = _restored(record, state, vocabularies, f"version {number}")
        return cls(module, record, facts, lineage.metrics(number))

    @classmethod
    def from_pretrained(
        cls, place: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> Self:
        """Return the encoder that `save_pretrained` wrote to a folder, or `push_to_hub` to the Hub.

        Each file is compared with its hash. Nothing but safetensors and JSON is read.

        Args:
            place: a folder; where there is none of that name, OWNER/NAME on the Hugging Face Hub.
            revision: a commit, a tag or a branch; None is the main branch as it is now.
            token: None is the one that huggingface_hub has stored, or HF_TOKEN.
        Raises: DataError: the folder holds no encoder, or has no revisions; or huggingface_hub is
            not installed. ServiceError: the Hub refuses, or cannot be reached. IntegrityError: a
            file is damaged. FormatError: it was written by a later Evergram.
        """
        folder = Path(place)
        if isinstance(place, str) and not folder.exists() and is_repository(place):
            api, fetched = _api(token), list(READ_FILES)
            with _as_errors_of_ours(place):
                folder = Path(
                    api.snapshot_download(place, revision=revision, allow_patterns=fetched)
                )
        elif revision is not None:
            raise DataError(
                f"{place} is a folder, which has no revisions; leave 'revision' out, or give "
                "OWNER/NAME of a repository on the Hub."
            )
        parts = read_encoder_folder(folder)
        module = _restored(parts.record, parts.state, parts.vocabularies, str(place))
        return cls(module, parts.record, parts.facts, parts.metrics)

    def save_pretrained(
        self, folder: str | Path, *, overwrite: bool = False, license: str | None = None
    ) -> None:
        """Write the encoder to a folder: safetensors, JSON, and a README.md made from its metrics.

        Args:
            overwrite: whether to replace a folder that is there.
            license: for the README.md, such as "apache-2.0"; None leaves it open.
        Raises: DataError: the folder is there already, or cannot be written; or the licence cannot
            stand in a model card.
        """
        self._write(Path(folder), CardPlace(str(folder), license), overwrite=overwrite)

    def push_to_hub(
        self,
        repository: str,
        *,
        license: str | None = None,
        private: bool = False,
        revision: str | None = None,
        token: str | None = None,
    ) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face Hub, and return the commit.

        Args:
            license: as for `save_pretrained`.
            repository: OWNER/NAME; made if it is not there.
            private: whether a repository that is made is private.
            revision: the branch; None is the main one.
            token: as for `from_pretrained`.
        Raises: DataError: the name is none of a repository; or huggingface_hub is not installed.
            ServiceError: the Hub refuses, or cannot be reached.
        """
        if not is_repository(repository):
            raise DataError(
                f"{repository[:100]!r} is not the name of a repository; give OWNER/NAME."
            )
        place, api = CardPlace(repository, license), _api(token)
        with TemporaryDirectory(prefix="evergram-hub-") as temporary:
            folder = Path(temporary) / "encoder"
            self._write(folder, place, overwrite=False)
            with _as_errors_of_ours(repository):
                api.create_repo(repository, private=private, exist_ok=True)
                if revision is not None:
                    api.create_branch(repository, branch=revision, exist_ok=True)
                commit = api.upload_folder(
                    repo_id=repository,
                    folder_path=folder,
                    revision=revision,
                    allow_patterns=[*READ_FILES, CARD],
                    commit_message=f"{self.facts.name}, {self.facts.fingerprint}",
                )
        return str(commit.oid)

    def _write(self, folder: Path, place: CardPlace, *, overwrite: bool) -> None:
        card = model_card(self.record, self.facts, self.metrics, place)
        vocabularies = self.module.schema.vocabularies
        encoder = EncoderFolder(
            self.record, self.facts, self.metrics, self.module.state_dict(), vocabularies
        )
        write_encoder_folder(folder, encoder, card, overwrite=overwrite)

    def __repr__(self) -> str:
        return f"PretrainedEncoder({self.record.kind}, dim {self.dim}, {self.facts.name})"

    @property
    def kind(self) -> str:
        """The kind of encoder, such as "two_tower"."""
        return self.record.kind

    @property
    def dim(self) -> int:
        """D, the length of its vectors."""
        return self.module.dim

    @property
    def features(self) -> dict[str, list[str]]:
        """The inputs of an object of each side: "id", and the names of features."""
        return {side: list(inputs) for side, inputs in self.module.schema.inputs.items()}

    def to(self, device: str | torch.device) -> Self:
        """Move the encoder to a device, in place. Returns: itself."""
        self.module.to(device)
        return self

    @overload
    def encode(
        self,
        objects: Any,
        side: str = SIDE,
        *,
        batch_size: int = 4096,
        show_progress_bar: bool = False,
        convert_to_numpy: Literal[True] = True,
    ) -> npt.NDArray[np.float32]: ...

    @overload
    def encode(
        self,
        objects: Any,
        side: str = SIDE,
        *,
        batch_size: int = 4096,
        show_progress_bar: bool = False,
        convert_to_numpy: Literal[False],
    ) -> Tensor: ...

    def encode(
        self,
        objects: Any,
        side: str = SIDE,
        *,
        batch_size: int = 4096,
        show_progress_bar: bool = False,
        convert_to_numpy: bool = True,
    ) -> npt.NDArray[np.float32] | Tensor:
        """Return the embeddings of objects, [B, D] float32 in their order.

        An object that is given by its id alone is embedded without its features, which is not the
        published vector: a warning names the features, once for each side.

        Args:
            objects: ids, in a list, an array or a column; a mapping for each object; or a table
                (pandas, Polars or Arrow). Mappings and tables have the id as "id", and features by
                name, each a key or a list of keys. Or a `Corpus`, for all of its side: that is the
                only input of encoders that need a graph.
            side: "query" or "candidate".
            batch_size: objects that are embedded at once.
            show_progress_bar: on stderr.
            convert_to_numpy: a NumPy array; else a tensor on the CPU.
        Raises: DataError: no such side or feature, or an object of which the encoder knows nothing.
            LineageError: the encoder needs a graph, and a Corpus was not given.
        """
        if batch_size < 1:
            raise DataError(f"batch_size is {batch_size}; it must be at least 1.")
        if isinstance(objects, Corpus):
            vectors = self._of_corpus(objects, side)
        else:
            blocks = list(self._blocks(objects, side, batch_size, show_progress_bar))
            vectors = torch.cat(blocks) if blocks else torch.zeros(0, self.dim)
        return vectors.numpy() if convert_to_numpy else vectors

    def _of_corpus(self, corpus: Corpus, side: str) -> Tensor:
        sides = self.module.schema.inputs
        if side not in sides:
            raise DataError(f"There is no side {side!r}; there is {' and '.join(sides)}.")
        scene = self.module.read(corpus).to(self.module.device)
        entities = corpus.queries if side == "query" else corpus.candidates
        refuse_other_ids(entities.vocabulary.keys, side, self.module.schema)
        refuse_unknown(self.module.known(side, scene).cpu(), {ID: entities.vocabulary.keys})
        is_known_id = self.module.schema.ids(side).rows(entities.vocabulary.keys) >= 0
        self._warn_without_features(side, entities.features, is_known_id)
        return self.module.embed_all(scene)[side].float().cpu()

    def _blocks(
        self, objects: Any, side: str, batch_size: int, show_progress_bar: bool
    ) -> Iterator[Tensor]:
        module = self.module
        if not isinstance(module, RowEncoder):
            raise LineageError(
                f"{self.record.kind} embeds an object by whom it has met, so it needs the whole "
                "graph: give encode() a Corpus, or read stored embeddings by evergram.Reader."
            )
        columns = columns_of(objects)
        inputs = checked_inputs(columns, side, module.schema)
        self._warn_without_features(side, columns, inputs.ids >= 0)
        blocks: Iterable[Tensor] = module.blocks(side, inputs, batch_size)
        if show_progress_bar:
            batches = -(-len(inputs) // batch_size)
            blocks = track(blocks, "Encoding", total=batches, console=Console(stderr=True))
        for block in blocks:
            yield block.float().cpu()

    def _warn_without_features(
        self, side: str, features: Collection[str], is_known_id: Tensor
    ) -> None:
        """Warn once for each side of known ids, bool [B], with none of the values of a feature."""
        missing = missing_features(features, side, self.module.schema)
        if not missing or side in self._warned or not bool(is_known_id.any()):
            return
        self._warned.add(side)
        example = ", ".join(f'"{name}": …' for name in (ID, *missing))
        log.warning(
            "%d of %d objects of side %r are known by id, and are embedded without %s, which "
            "their published vectors include: pass the features too, as encode([{%s}, …]) or as "
            "columns of a table, or read the published vectors by evergram.Reader.",
            int(is_known_id.sum()),
            len(is_known_id),
            side,
            ", ".join(missing),
            example,
        )


def _restored(
    record: EncoderRecord,
    state: Mapping[str, Tensor],
    vocabularies: Mapping[str, Vocabulary],
    what: str,
) -> Encoder:
    if record.kind in ENCODERS and not ENCODERS[record.kind].made_by_recipe:
        raise LineageError(
            f"The encoder of {what} is made of modules that the lineage does not hold; give them "
            "as evergram.load_encoder(lineage, version, EncoderModules(…)). Its embeddings can be "
            "read without them."
        )
    module = restore_encoder(record.kind, record.options, record.inputs, state, vocabularies, what)
    return module.requires_grad_(False)
