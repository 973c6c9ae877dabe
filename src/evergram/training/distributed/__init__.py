"""Training in many processes, each with a share of every batch.

Read in this order: `shares`, what a process does of a step; `gradients`, how their gradients become
the whole batch's; `process_group`, the operations that they do together, over gloo or NCCL;
`agreement`, what the first process tells the others; `shared_state`, what of an epoch's state all
read from it; `shared_embedding`, embeddings of all entities.
"""
