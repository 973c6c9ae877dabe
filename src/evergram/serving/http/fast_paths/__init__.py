"""Code that goes around a library, because the library's way costs too much here.

Each file says what it goes around; `python -m benchmarks serving-fast-paths` measures both ways,
and docs/serving.md has the figures. A fast path that is not worth 1.2 times is removed.

- `direct_routes`: FastAPI's routing, on the three routes of vectors.
- `inline_answers`: the thread pool, for requests of a few ids.
- `json_pieces`: pydantic's parser, for bodies over 64 KiB.
- `compression_check`: pyarrow's reader, which decompresses a batch before anybody can look at it.
"""
