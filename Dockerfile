# The service, with the lineage mounted at /lineage:
#
#   docker build -t evergram .
#   docker run -p 8080:8080 -v "$PWD/lineages/films:/lineage" --user "$(id -u):$(id -g)" evergram
#
# (A lineage can be read by who made it alone, unless it is shared: docs/lineage.md.)
#
# It listens to others, so at least one consumer needs a token ('evergram consumer token'), or the
# administrator does (-e EVERGRAM_ADMIN_TOKEN=…); without one it does not start.
FROM python:3.11-slim

# One more index to find torch in. Without it torch is the package registry's own build, which on
# Linux brings CUDA's libraries: gigabytes that a machine without a GPU never loads. PyTorch's index
# of CPU builds leaves them out:
#   --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG TORCH_INDEX=""

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

WORKDIR /source

# The largest layer first: it changes only with its pin.
COPY constraints.txt ./
RUN pip install --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
    torch==2.13.0

COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints.txt ".[serve,faiss,pgvector]"

# The volume must be readable, and for its stores writable, by this user.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin evergram \
    && install --directory --owner evergram --group evergram /lineage
USER evergram
WORKDIR /lineage
VOLUME /lineage

EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
CMD ["evergram", "serve", "/lineage", "--host", "0.0.0.0", "--port", "8080"]
