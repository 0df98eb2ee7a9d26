# syntax=docker/dockerfile:1
# docker build -t diarist .
# docker run -p 127.0.0.1:8484:8484 -v diarist:/data diarist

FROM rust:1.95.0-slim-bookworm AS build
# The image's own toolchain, instead of rust-toolchain.toml with its components for development.
ENV RUSTUP_TOOLCHAIN=1.95.0
# `--build-arg PROFILED=0` builds once, in half the time; small requests then take about a fifth more processor time.
ARG PROFILED=1
RUN if [ "$PROFILED" = 1 ]; then rustup component add llvm-tools; fi
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    if [ "$PROFILED" = 1 ]; then \
        .ci/build-with-profile && cp target/profiled/*/dist/diarist /usr/local/bin/diarist; \
    else \
        cargo build --locked --profile dist --bin diarist && cp target/dist/diarist /usr/local/bin/diarist; \
    fi \
    && mkdir /data

# libc, the root certificates and nothing else; runs as user 65532.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /usr/local/bin/diarist /usr/local/bin/diarist
# A new volume takes the ownership of the folder it is mounted on.
COPY --from=build --chown=nonroot:nonroot /data /data

# The data port is for other containers; the admin port stays inside (set DIARIST__SERVER__ADMIN to
# scrape its metrics). Any key of the configuration can be set this way: `docker run diarist config`.
ENV DIARIST__SERVER__LISTEN=0.0.0.0:8484 \
    DIARIST__SERVER__ADMIN=127.0.0.1:8485 \
    DIARIST__STORE__URL=sqlite:///data/diarist.db
VOLUME /data
EXPOSE 8484

HEALTHCHECK --interval=10s --timeout=6s --start-period=5s --retries=3 \
    CMD ["/usr/local/bin/diarist", "health"]

ENTRYPOINT ["/usr/local/bin/diarist"]
CMD ["serve"]
