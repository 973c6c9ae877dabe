"""Tables that are divided by rows among the processes of one training.

The engine is torch's own: rows are looked up by torch.distributed.tensor, and kept by
torch.distributed.checkpoint. Read in this order: `sharded_table`, a table and how a step reads it;
`sharded_factorization`, the encoder that has them, and what the first process asks of the others;
`gathered_factorization`, the encoder that is published; `shard_files` and `sharded_state`,
checkpoints; `sharding_limits`, what is refused.
"""
