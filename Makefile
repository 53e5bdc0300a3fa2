# Holdfast. `make run` shows it, `make test` proves it; `make help` lists the rest.
SHELL      := /bin/bash
GO         ?= go
BIN        := bin/holdfast
VERSION    := 0.1.0
LDFLAGS    := -X github.com/holdfast-quic/holdfast/internal/build.version=$(VERSION)
TOOLS      := $(GO) tool -modfile=tools/go.mod
FUZZTIME   ?= 20s
# Integration tests start real supervisors on two cores: one package at a time.
TESTFLAGS  ?= -p 2 -timeout 20m

.PHONY: help build run demo test unit race fuzz bench bench-peers interop test-systemd lint fmt soak generate clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

build: ## bin/holdfast
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/holdfast

run: build ## serve the built-in example on 127.0.0.1:8443
	$(BIN) run

demo: build ## the whole promise on this machine in a minute
	$(BIN) demo

# A scenario that fails beside others on a loaded machine is run again, twice at most; the
# report names it either way, and it fails for good when it fails each time.
test: ## every test, integration included
	@$(GO) vet ./...
	$(GO) tool gotestsum --format pkgname --hide-summary=skipped --rerun-fails=2 --rerun-fails-max-failures=10 --packages ./... -- $(TESTFLAGS)

unit: ## the packages without the integration tests
	$(GO) tool gotestsum --format pkgname -- $$($(GO) list ./... | grep -v /test)

race: ## the packages under the race detector
	$(GO) tool gotestsum --format pkgname -- -race -timeout 20m $$($(GO) list ./... | grep -v /test)

fuzz: ## every fuzz target for FUZZTIME each
	scripts/fuzz.sh $(FUZZTIME)

bench: ## measure, and write docs/performance.md
	scripts/bench.sh

test-systemd: ## the units under real systemds, 257 and 252
	scripts/test-systemd.sh

interop: ## clients that are not ours, over reloads
	scripts/interop.sh

soak: ## the long versions of the integration tests
	HOLDFAST_SOAK=1 $(GO) tool gotestsum --format testname -- -timeout 3h ./test/...

lint: ## golangci-lint, staticcheck included, and shellcheck where it is
	@if command -v shellcheck >/dev/null; then shellcheck -x scripts/*.sh; else echo "lint: skipped: shellcheck is not there"; fi
	$(TOOLS) golangci-lint run ./...

fmt: ## gofumpt
	$(TOOLS) gofumpt -w $$(git ls-files '*.go')

generate: ## man pages, schema and reference tables
	$(GO) generate ./...

clean:
	rm -rf bin
