# docker build -t eblvm_lit . && docker run --gpus all -v "$PWD/outputs:/app/outputs" eblvm_lit method=dsm
FROM nvidia/cuda:13.0.1-base-ubuntu24.04

# A compiler and the headers of Python, by which torch compiles iterations. Ubuntu keeps no older builds to pin.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ git make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 1000 -g 1000 /app

# The image's own user, who is not root.
USER 1000
WORKDIR /app
ENV PATH=/app/.venv/bin:$PATH
RUN python3 -m venv .venv
COPY pyproject.toml constraints.txt README.md LICENSE source/
COPY src source/src
COPY conf source/conf
RUN pip install --no-cache-dir -c source/constraints.txt ./source

ENTRYPOINT ["eblvm-train"]
