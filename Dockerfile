# syntax=docker/dockerfile:1
# One image for the service and the runner: `docker run onyx onyx serve …`, `docker run onyx onyx runner`.

# torch's wheel brings its own CUDA libraries: the base gives the system and what the container toolkit looks for.
# A digest instead of the tag makes the base immutable: --build-arg BASE=nvidia/cuda@sha256:…
ARG BASE=nvidia/cuda:12.8.1-base-ubuntu24.04

FROM ${BASE} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV DEBIAN_FRONTEND=noninteractive
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/onyx
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY onyx ./onyx
# constraints.txt pins torch by version only. The package index's wheel of that version is the CUDA build; for a smaller
# image without CUDA name an index of CPU wheels in TORCH_OPTIONS (docker-compose.cpu.yml does).
ARG TORCH_OPTIONS=""
ENV PIP_CACHE_DIR=/var/cache/pip
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/onyx/bin/pip install --disable-pip-version-check -c constraints.txt ${TORCH_OPTIONS} torch \
    && /opt/onyx/bin/pip install --disable-pip-version-check -c constraints.txt '.[postgres]'

FROM ${BASE} AS run
ENV DEBIAN_FRONTEND=noninteractive
# The compiler stays: torch.compile builds its kernels where they run. tini reaps what runners leave.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libc6-dev python3 python3-dev tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 onyx \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/onyx --shell /usr/sbin/nologin onyx \
    && install -d -o onyx -g onyx -m 0750 /var/lib/onyx
COPY --from=build /opt/onyx /opt/onyx
ENV PATH=/opt/onyx/bin:$PATH \
    ONYX_HOME=/var/lib/onyx \
    ONYX_LOG_FORMAT=json \
    CUDA_DEVICE_ORDER=PCI_BUS_ID \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/onyx
VOLUME /var/lib/onyx
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=4 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["onyx", "serve", "--host", "0.0.0.0", "--port", "8000"]
