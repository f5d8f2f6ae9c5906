# syntax=docker/dockerfile:1
# Two slim images of Cotswold, which do not run as root (docs/how-to/containers.md):
#
#     docker build --target cpu --tag cotswold:cpu .
#     docker build --target cuda --tag cotswold:cuda .
#
# EXTRAS replaces the extras that are installed: --build-arg EXTRAS='[cuda,cluster]'. Default: none, and [cuda] for cuda.

ARG PYTHON=3.13

FROM python:${PYTHON}-slim-bookworm AS sources
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
RUN python -m pip install --no-cache-dir --constraint constraints.txt uv \
    && python -m venv --without-pip /opt/cotswold
COPY src src

FROM sources AS build-cpu
ARG EXTRAS=""
RUN uv pip install --no-cache --compile-bytecode --python /opt/cotswold --torch-backend cpu \
    --constraint constraints.txt --build-constraint constraints.txt ".${EXTRAS}"

# PyTorch's default wheels bring the CUDA libraries; the host supplies the driver
FROM sources AS build-cuda
ARG EXTRAS="[cuda]"
RUN uv pip install --no-cache --compile-bytecode --python /opt/cotswold \
    --constraint constraints.txt --build-constraint constraints.txt ".${EXTRAS}"

FROM python:${PYTHON}-slim-bookworm AS runtime
RUN groupadd --gid 10001 cotswold \
    && useradd --uid 10001 --gid cotswold --create-home --shell /usr/sbin/nologin cotswold \
    && install --directory --owner cotswold --group cotswold /srv/cotswold
ENV PATH=/opt/cotswold/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /srv/cotswold
ENTRYPOINT ["cotswold"]
CMD ["--help"]

# Triton compiles the launchers of its kernels with a C compiler
FROM runtime AS cuda
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-cuda /opt/cotswold /opt/cotswold
USER 10001:10001

FROM runtime AS cpu
COPY --from=build-cpu /opt/cotswold /opt/cotswold
USER 10001:10001
