# One target for each program: registry, stdio-bridge, extctl, and primes, the Go example of examples/services.
#
#     docker build --target registry -t extmesh/registry .
#
# Without network, from static Linux binaries that are already built, no image is pulled:
#
#     CGO_ENABLED=0 go build -o dist/ ./cmd/... ./examples/services/primes
#     cp /etc/ssl/certs/ca-certificates.crt dist/
#     docker build --target registry --build-arg BINARIES=local --build-arg BRIDGE_BASE=scratch .

ARG BINARIES=built
# The bridge's image must contain what its children need; this one has a shell. For other extensions use the image of their
# interpreter (python:3-slim, node:22-slim), or scratch for static binaries.
ARG BRIDGE_BASE=alpine:3.22

FROM --platform=$BUILDPLATFORM golang:1.26 AS built
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION=
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags "-s -w -X github.com/extmesh/extmesh/internal/daemon.version=$VERSION" -o /dist/ ./cmd/registry ./cmd/stdio-bridge ./cmd/extctl ./examples/services/primes
RUN cp /etc/ssl/certs/ca-certificates.crt /dist/

FROM scratch AS local
COPY dist/ /dist/

FROM $BINARIES AS binaries

# The certificates are for NATS servers and extensions over HTTP with public ones.
FROM scratch AS registry
COPY --from=binaries /dist/ca-certificates.crt /etc/ssl/certs/
COPY --from=binaries /dist/registry /registry
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/registry"]
CMD ["--http", ":8080"]

FROM $BRIDGE_BASE AS stdio-bridge
COPY --from=binaries /dist/ca-certificates.crt /etc/ssl/certs/
COPY --from=binaries /dist/stdio-bridge /stdio-bridge
# npx, uvx and go run write to the home directory; the root file system may be read-only. Mount a volume for the state of extensions that
# must not be lost with the container, and pass it with --state-dir.
ENV HOME=/tmp
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/stdio-bridge"]
CMD ["--http", ":8080", "--search-path", "/extensions", "--secrets", "granted", "--state-dir", "/tmp/state"]

FROM scratch AS extctl
COPY --from=binaries /dist/ca-certificates.crt /etc/ssl/certs/
COPY --from=binaries /dist/extctl /extctl
USER 65532:65532
ENTRYPOINT ["/extctl"]

FROM scratch AS primes
COPY --from=binaries /dist/ca-certificates.crt /etc/ssl/certs/
COPY --from=binaries /dist/primes /primes
USER 65532:65532
ENTRYPOINT ["/primes"]
