# weft for CPUs, from Debian's packages alone:
#
#   docker build -t weft .
#   docker run --rm -v "$PWD:/work" weft study --config demo
#
# The first stage builds a Debian package of this tree, the second installs it.
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc make git ca-certificates dpkg-dev
COPY . /src
WORKDIR /src
RUN scripts/setup build optional && make deb SETUP=no && cp build/weft_*.deb /weft.deb

FROM debian:bookworm-slim
COPY --from=build /weft.deb /tmp/weft.deb
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/weft.deb && rm -rf /tmp/weft.deb /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["weft"]
CMD ["help"]
