# The server on NVIDIA GPUs: one process, or a rank for each GPU. From the root of the repository:
#
#   docker build --file deploy/docker/gpu.Dockerfile --tag embershard:0.1.0-gpu .
#   docker run --rm --gpus all --read-only --tmpfs /tmp --volume embershard:/data --publish 127.0.0.1:50051:50051 \
#     --env EMBERSHARD_PLAINTEXT=1 embershard:0.1.0-gpu
#   docker run … embershard:0.1.0-gpu torchrun --standalone --nproc-per-node 4 -m embershard_server
#
# Each flag of the server is an environment variable EMBERSHARD_…; without certificates or EMBERSHARD_PLAINTEXT=1 it
# refuses to start, as it listens on all addresses. It writes to /data, and torchrun also to /tmp: all else may be
# read-only. Several ranks on GPUs need room in /dev/shm (--shm-size 1g).
#
# The base is pinned by its full version. Pin it by digest, too, once you have looked at it:
#   --build-arg PYTHON=docker.io/library/python:3.11.14-slim-trixie@sha256:…
ARG PYTHON=docker.io/library/python:3.11.14-slim-trixie

FROM ${PYTHON} AS builder
# torch brings the CUDA libraries as packages: of NVIDIA's only the driver is the host's. For torch from another index.
ARG PIP_EXTRA_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/ requirements/
# The environment is filled from outside, so that it holds nothing to build with, pip neither.
RUN python -m venv --without-pip /opt/embershard \
    && pip --python /opt/embershard/bin/python install --requirement requirements/gpu.lock dumb-init==1.2.5.post1 \
    && pip --python /opt/embershard/bin/python install --no-deps --requirement requirements/torchrec.lock
COPY pyproject.toml README.md LICENSE ./
COPY src/ src/
COPY service/ service/
RUN pip install setuptools==84.2.1 \
    && pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/embershard/bin/python install --no-deps dist/embershard-*.whl

FROM ${PYTHON}
LABEL org.opencontainers.image.title="embershard" \
      org.opencontainers.image.description="Learned lookup tables for recommenders, read and updated over gRPC (NVIDIA GPUs)" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=builder /opt/embershard /opt/embershard
COPY deploy/docker/healthcheck.py /opt/embershard/healthcheck.py
COPY deploy/movielens.toml /etc/embershard/collection.toml
# Of group 0, so that any user may write to it whom a platform gives that group, as OpenShift does.
RUN install --directory --owner=10001 --group=0 --mode=0770 /data
ENV PATH=/opt/embershard/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    EMBERSHARD_CONFIG=/etc/embershard/collection.toml \
    EMBERSHARD_DATA_DIR=/data \
    EMBERSHARD_LISTEN=0.0.0.0:50051 \
    EMBERSHARD_METRICS_LISTEN=0.0.0.0:9464
USER 10001:0
VOLUME /data
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=30m --start-interval=5s --interval=10s --timeout=5s --retries=3 \
    CMD ["python", "/opt/embershard/healthcheck.py"]
# A process with number 1 would not hear of a signal before it asks to; this one hands it on at once, to torchrun, too.
ENTRYPOINT ["dumb-init", "--single-child", "--"]
CMD ["embershard", "serve"]
