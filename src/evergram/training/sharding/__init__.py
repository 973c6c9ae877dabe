"""Tables that are divided by rows among the processes of one training.

Rows are looked up by torch.distributed.tensor, and kept by torch.distributed.checkpoint.
"""
