"""Encoders: models that map entities of two sides to vectors [B, D] of one space.

Read in this order:

1. `encoder`: from a corpus's rows to an encoder's own rows of ids and of bags of features; tables;
   `Encoder`, the interface; `Scene`, a corpus as it sees it; `RowEncoder`, which embeds each
   entity by itself; of its kind factorization (a free vector for each entity) and two towers (ids
   and features through layers).
2. `graph_encoders`: GraphSAGE and LightGCN; `mean_of_candidates`, whose queries have no table.
3. `encoder_inputs`: ids, features and tables of a user's objects, as an encoder reads them.
4. `module_encoder`: the user's own modules.
5. `kinds`: the settings of each, by which `encoder` builds new ones and those of versions;
   `mapped_tensors` keeps tables in files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergram.lazy_exports import export_lazily

if TYPE_CHECKING:
    from evergram.encoders.encoder import SIDES as SIDES
    from evergram.encoders.encoder import Embeddings as Embeddings
    from evergram.encoders.encoder import Encoder as Encoder
    from evergram.encoders.encoder import Factorization as Factorization
    from evergram.encoders.encoder import RowEncoder as RowEncoder
    from evergram.encoders.encoder import Schema as Schema
    from evergram.encoders.encoder import TwoTower as TwoTower
    from evergram.encoders.graph_encoders import GraphSage as GraphSage
    from evergram.encoders.graph_encoders import LightGCN as LightGCN
    from evergram.encoders.kinds import ENCODERS as ENCODERS
    from evergram.encoders.kinds import EncoderSettings as EncoderSettings

export_lazily(__name__)
