# Skerry. `make help` lists what there is.
#
# Everything that is not in the repository is installed by the setup targets,
# from Debian's packages and the Go module proxy, at pinned versions where the
# registry has versions to pin.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
ARCHES  ?= $(shell go env GOARCH)
CACHE   ?= $(CURDIR)/.cache
SKERRY  := $(CURDIR)/bin/skerry

# What runs sandboxes, and what only the tests need besides.
RUN_PACKAGES  := qemu-system-x86 e2fsprogs mmdebstrap kmod ca-certificates uidmap
TEST_PACKAGES := busybox-static erofs-utils umoci skopeo buildah docker-registry apache2-utils qemu-utils gcc libc6-dev

export SKERRY_TEST_KERNEL_DIR := $(CACHE)/kernel
export CGO_ENABLED ?= 0

LDFLAGS := -s -w -X main.version=$(VERSION)
EMBED   := internal/programs/bin
AGENTS  := $(foreach a,$(ARCHES),$(EMBED)/skerry-guest-$(a).gz)
SHIM    := $(EMBED)/skerry-shim-$(shell go env GOARCH).gz

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: setup build ## see it work: install what is needed, build, start a server, take the tour
	@scripts/demo.sh $(SKERRY)

.PHONY: test
test: setup-test build kernel ## all tests, real microVMs included
	@scripts/test.sh

STEPS ?= 500
SEED  ?= 1
.PHONY: walk
walk: setup-test build kernel ## random operations and kills on real sandboxes: make walk STEPS=500 SEED=1
	@CGO_ENABLED=1 SKERRY_WALK_STEPS=$(STEPS) SKERRY_WALK_SEED=$(SEED) go test -count=1 -timeout 60m -run TestWalk -v ./test/walk

.PHONY: lint
lint: programs ## formatting, vet, linters, generated files
	@scripts/lint.sh

.PHONY: bench
bench: setup build ## measure: create, exec, memory; a table and JSON
	@scripts/bench.sh $(SKERRY)

.PHONY: build
build: programs ## bin/skerry
	@echo "building $(notdir $(SKERRY)) $(VERSION); the first build takes a minute or two"
	@go build -trimpath -ldflags '$(LDFLAGS)' -o $(SKERRY) ./cmd/skerry

.PHONY: programs
programs: $(AGENTS) $(SHIM) ## the guest agents and the shim, which bin/skerry embeds

# $(call program,NAME,ARCH) builds one of them.
define program
@echo "building $(1) for $(2)"
@CGO_ENABLED=0 GOOS=linux GOARCH=$(2) go build -trimpath -ldflags '-s -w' -o $(CACHE)/$(1)-$(2) ./cmd/$(1)
@gzip -9 -n -c $(CACHE)/$(1)-$(2) > $@
endef

$(EMBED)/skerry-guest-%.gz: $(shell find cmd/skerry-guest internal/guest internal/guestapi -name '*.go' -not -name '*_test.go') go.mod $(wildcard *.go)
	$(call program,skerry-guest,$*)

$(EMBED)/skerry-shim-%.gz: $(shell find cmd/skerry-shim internal -name '*.go' -not -name '*_test.go') go.mod $(wildcard *.go)
	$(call program,skerry-shim,$*)

.PHONY: kernel
kernel: build ## the guest kernel that the tests boot
	@test -d $(CACHE)/kernel/boot || $(SKERRY) kernel fetch --dir $(CACHE)/kernel

.PHONY: setup
setup: ## install the Debian packages that run sandboxes
	@scripts/packages.sh $(RUN_PACKAGES)

.PHONY: setup-test
setup-test: ## install the Debian packages that the tests need besides
	@scripts/packages.sh $(RUN_PACKAGES) $(TEST_PACKAGES)

.PHONY: generate
generate: build ## regenerate what is generated
	@scripts/generate.sh $(SKERRY)

.PHONY: cross
cross: programs ## check that the command line builds for macOS and Windows
	@GOOS=darwin GOARCH=arm64 go build -o /dev/null ./cmd/skerry
	@GOOS=windows GOARCH=amd64 go build -o /dev/null ./cmd/skerry

.PHONY: clean
clean: ## remove what was built; sandboxes and images of a server stay
	@rm -rf bin .cache $(EMBED)/*.gz
