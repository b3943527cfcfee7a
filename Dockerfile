# docker build -t faultline .
# docker run --rm -v "$PWD/runs:/faultline/runs" faultline faultline train rollout/precision=bf16 steps=20
# On a GPU: docker run --gpus all ... ; vLLM is added by `docker build --build-arg VLLM=1 -t faultline:vllm .`
FROM python:3.11-bookworm
ARG VLLM=
WORKDIR /faultline
RUN apt-get update \
    && apt-get install -y --no-install-recommends git make gcc g++ \
    && rm -rf /var/lib/apt/lists/*
COPY . .
RUN pip install --no-cache-dir -c constraints.txt -e '.[test]' \
    && if [ -n "$VLLM" ]; then python -m experiments.install_vllm; fi
ENV OMP_NUM_THREADS=1
CMD ["faultline", "--help"]
