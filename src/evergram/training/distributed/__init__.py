"""Training in many processes, each with a share of every batch.

Read in this order: `shares`, what a process does of a step; `gradients`, how their gradients become
the whole batch's; `process_group`, the operations that they do together, over gloo or NCCL;
`refusals`, what cannot be shared; `agreement`, what the first process tells the others;
`shared_embedding`, embeddings of all entities.
"""
