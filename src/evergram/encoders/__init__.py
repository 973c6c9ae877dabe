"""Encoders: models that map queries and candidates to vectors [B, D] in a shared space.

Read in this order:

1. `encoder`: the inputs of encoders and their embedding tables; `Encoder`, the interface; `Scene`,
   a corpus translated for an encoder; `RowEncoder`, which embeds each entity independently, with
   two subclasses: factorization (a free vector per entity) and two towers (ids and features
   through layers).
2. `graph_encoders`: GraphSAGE and LightGCN; `mean_of_candidates`: queries without a table.
3. `encoder_inputs`: converts a user's ids, features and tables to the inputs of an encoder.
4. `module_encoder`: wraps the user's own modules.
5. `kinds`: the settings of each encoder.
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
