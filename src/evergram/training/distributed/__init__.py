"""Training in many processes, each with a share of every batch.

`shares`: what a process does of a step; `process_group`: the operations that processes do together,
over gloo or NCCL; `agreement`: what the first process tells the others.
"""
