"""Embeddings of one version as the classes of LangChain, LlamaIndex and Haystack.

`pinned_texts` encodes texts at one version, by a service or by a lineage on this machine. One file
a framework wraps it; each imports its framework, which is an extra of its name.
"""
