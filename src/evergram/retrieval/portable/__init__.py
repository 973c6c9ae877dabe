"""The way back to a past version, written for programs that do not have Evergram.

1. `affine_map`: the composed way from the stored version to a past one, as a matrix and an offset.
   `map_steps`: the same step by step, where it is no single matrix.
2. One file a format: `onnx_graph`, `pgvector_function`, `duckdb_macro`, and
   `sentence_transformer_folder`, which has the newest version's encoder in it.
3. `formats`: the table of formats, and `export_transform`, which writes one of them.
"""
