# slurmbridge: `make` alone explains itself.

SHELL   := /bin/sh
MAKEFLAGS += --no-builtin-rules
# Go's own place, for shells that don't have it on their PATH.
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
# A Go older than go.mod asks for fetches the right one.
export GOTOOLCHAIN ?= auto
# The NVML binding wraps functions that its own header calls deprecated: 29 warnings.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
# Programs, tests and the linter are compiled alike, so that each package is compiled once, whatever else GOFLAGS has: the
# tags make what is linked with cgo (gpuprof, tests) take the same sources as what is not.
ALIKE := -trimpath -buildvcs=false -tags=netgo,osusergo
export GOFLAGS := $(ALIKE) $(filter-out $(ALIKE),$(GOFLAGS))
# Where tests find the programs, which every target with tests builds first.
export SLURMBRIDGE_BUILD = $(CURDIR)/$(BUILD)
# V=1 shows every command and all its output.
export V
QUIETLY := contrib/quietly

GO      ?= go
CC      := gcc
# What packages are for. The other architecture's programs and packages have a folder of their own.
HOST    := $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(shell uname -m)))
ARCH    ?= $(HOST)
BUILD   := build
ifneq ($(ARCH),$(HOST))
BUILD   := build/$(ARCH)
CROSS   := GOARCH=$(ARCH) CC=$(if $(filter arm64,$(ARCH)),aarch64,x86-64)-linux-gnu-gcc
endif
VERSION := $(shell contrib/packaging/version)
# The same bytes from the same sources, wherever they lie.
GOBUILD := $(GO) build -ldflags '-s -w -X main.version=$(VERSION)' -o $(BUILD)/
# End-to-end tests wait for daemons most of the time: more of them at once than there are cores.
# The linter vets.
TEST    := $(GO) test -vet=off -count=1 -p 2 -parallel 8
PKGS    ?= ./...
NVMLSIM := contrib/testbed/gpusim/nvmlsim
TOOLS   := $(CURDIR)/build/tools
LINT    := $(TOOLS)/golangci-lint
NFPM    := $(TOOLS)/nfpm
SBOM    := $(TOOLS)/cyclonedx-gomod
SCRIPTS := contrib/install-deps contrib/mkroot contrib/quietly contrib/test contrib/fuzz contrib/nvidia contrib/testbed/slurmtest/namespace.sh $(NVMLSIM)/build $(addprefix contrib/testbed/acceptance/,acceptance steps) .ci/run $(wildcard etc/hooks/*) $(addprefix contrib/packaging/,build check licences release version) \
	$(wildcard contrib/packaging/scripts/*)

.DEFAULT_GOAL := help
.PHONY: help as-root deps build programs packed gpucheck demo demo-cold play compare nvidia test test-long roots test-compat lint lint-ansible fmt race fuzz bench soak packages packages-check release acceptance clean

help: ## this text
	@echo 'slurmbridge: Slurm jobs that share GPUs, chosen by what they really use.'
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
	@echo
	@echo 'Start with `make demo`: root on Debian 12 or 13, no GPU needed. README.md and contrib/doc have the rest.'

deps: ## install what building and testing need (Debian, root)
	@contrib/install-deps

# BUILT=1: somebody has called it, and others use what it made.
build: $(if $(BUILT),,deps) ## build everything into build/
	@$(if $(BUILT),:,$(QUIETLY) 'building into $(BUILD)/ (two minutes the first time)' $(MAKE) --no-print-directory programs)

programs: packed $(BUILD)/lib/libnvidia-ml.so.1
	CGO_ENABLED=0 $(GOBUILD) ./contrib/testbed/gpusim/cmd/gpusim

# The programs that packages hold.
packed:
	CGO_ENABLED=0 $(CROSS) $(GOBUILD) ./slurmbridge/cmd/slurmbridge ./prolog/cmd/slurmbridge-hook
	CGO_ENABLED=1 $(CROSS) $(GOBUILD) ./gpuprof/cmd/gpuprof

gpucheck: ## build/gpucheck: one program that tries MPS, NVML and the law on a machine with a GPU (contrib/gpucheck/README.md)
	CGO_ENABLED=1 $(GOBUILD) ./contrib/gpucheck

# The simulated GPU's NVML: C, because the program that loads it is Go, and two
# Go runtimes in one process are one too many.
$(BUILD)/lib/libnvidia-ml.so.1: $(wildcard $(NVMLSIM)/* $(NVMLSIM)/../*.go) go.mod
	@mkdir -p $(@D)
	$(NVMLSIM)/build $@

# Checked before minutes of building: the private cluster has several users.
as-root:
	@[ "$$(id -u)" = 0 ] || { echo 'make $(or $(firstword $(MAKECMDGOALS)),demo) takes root: it starts a private Slurm whose jobs belong to several users. Call: sudo make $(or $(firstword $(MAKECMDGOALS)),demo)' >&2; exit 2; }

# STAGE builds the stage's program and runs one of its commands; what that mounts disappears with it.
STAGE    = $(QUIETLY) 'building the stage' $(GO) build -o $(BUILD)/testbed/ ./contrib/testbed && unshare --mount $(BUILD)/testbed/testbed $1

demo: as-root build ## the thesis's 30 random jobs on one simulated Titan Xp, whole and shared (3 minutes)
	@$(call STAGE,demo) $(ARGS)

demo-cold: as-root build ## the same, with no application's profile known beforehand
	@$(call STAGE,demo) --cold $(ARGS)

play: as-root build ## a private Slurm with the bridge and five simulated GPUs, to type into; Ctrl-D ends it
	@$(call STAGE,play) $(ARGS)

compare: as-root build ## plain Slurm, plain shares and the bridge on the thesis's five workloads and three that come over time (QUICK=1: on three, 5 minutes)
	@$(call STAGE,compare) $(if $(QUICK),--quick) $(ARGS)

# The end-to-end tests that take more than a minute and a half, or a third of a minute of CPU time; and the longest of
# other packages.
E2E     := ./contrib/testbed/slurmtest/e2e
LONG    := AtWhateverLimitJobsRun ChaosOnANode DamagedFiles GPUsWithoutShares GateWhosePartitionCloses HostileTenant JobsAsTheyAre \
	KilledAtEveryStep MixedQueueSeveralGPUs SeveralGPUsAreFilledAtOnce TimeIsLentBack TimeIsNotLentBack TwoKindsOfCards \
	UsageAgreesWithAccounting
LONG_UNITS := HooksOnDamagedFiles Variants
# PART=K/N takes every Nth from the Kth on: of the long tests, of another release's end-to-end tests, and of the packages
# of race and fuzz. OTHERS are what it leaves out.
PARTED   = sort -u | awk -v part='$(or $(PART),1/1)' 'BEGIN {split(part, p, "/")} NR % p[2] == p[1] % p[2]'
OTHERS   = $(subst ==,!=,$(PARTED))
# The pattern of some tests' names; and the one to skip: none where TESTFLAGS choose tests.
space   := $(subst ,, )
NAMED    = ^Test($(subst $(space),|,$(strip $1)))$$
SKIP     = $(if $(filter -run% -skip%,$(TESTFLAGS)),,$(call NAMED,$1))

# Where each driver has a folder with NVIDIA's own programs; tests take those that are there.
DRIVERS ?= 470 535 550 555
export SLURMBRIDGE_NVIDIA ?= $(abspath $(ROOTS))/nvidia
nvidia: ## NVIDIA's own MPS programs and libraries of four drivers, for the tests (DRIVERS="535 550", ROOTS=FOLDER)
	@contrib/nvidia $(SLURMBRIDGE_NVIDIA) $(DRIVERS)

test: build ## unit tests and end-to-end tests on real Slurm daemons, all but the longest (AGAIN=10: until one is red)
	@contrib/nvidia $(SLURMBRIDGE_NVIDIA) 535 550 || true
	@for run in $$(seq $(or $(AGAIN),1)); do \
		$(if $(AGAIN),echo "run $$run of $(AGAIN)";) \
		SKIP_E2E='$(call SKIP,$(LONG))' SKIP_UNITS='$(call SKIP,$(LONG_UNITS))' \
		contrib/test $(CURDIR)/$(BUILD)/tests "$$($(GO) list $(PKGS))" $(TEST) -timeout 30m $(TESTFLAGS) || exit; \
	done

test-long: build ## the longest end-to-end tests, among them those under fire (PART=1/2)
	@SLURMBRIDGE_REQUIRE_SLURM=1 $(TEST) -timeout 30m -run '$(call NAMED,$(shell printf '%s\n' $(LONG) $(LONG_UNITS) | $(PARTED)))' \
		$(TESTFLAGS) $(E2E) ./contrib/testbed/compare ./prolog/cmd/slurmbridge-hook

# Slurm of these Debian releases: this machine's own, and the others' in a folder each,
# made once. forky is in development: its folder keeps the Slurm of the day it was made.
RELEASES ?= bookworm trixie forky
ROOTS    ?= $(CURDIR)/.cache
# SLOW= leaves out what takes minutes and what shows little new on another release.
SLOW     ?= 1
LEFT_OUT  = $(if $(SLOW),,$(LONG)) $(shell grep -ho '^func Test[A-Za-z0-9_]*' $(E2E)/*_test.go | cut -c10- | $(OTHERS))
COMPAT    = SLURMBRIDGE_SLOW=$(SLOW) SLURMBRIDGE_REQUIRE_SLURM=1 $(TEST) -timeout 30m -skip '$(call NAMED,$(LEFT_OUT))' $(TESTFLAGS) \
	./contrib ./contrib/testbed/slurmtest/... ./contrib/testbed/drawn ./slurmbridge/slurm/...

OWN      := $(shell sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)

roots: deps ## root folders of the other Debian releases' Slurm, for test-compat (RELEASES=forky, ROOTS=FOLDER)
	@contrib/install-deps --compat --accounting
	@for release in $(filter-out $(OWN),$(RELEASES)); do \
		contrib/mkroot "$$release" $(abspath $(ROOTS))/"$$release" || exit; \
	done

test-compat: build roots ## the end-to-end tests on 22.05.8, 24.11.5 and 26.05.5, and those of NVIDIA's programs (RELEASES=forky, PART=1/2, ROOTS=FOLDER)
	@contrib/nvidia $(SLURMBRIDGE_NVIDIA) $(DRIVERS) || true
	@$(TEST) ./contrib/testbed/nvidia/...
	@for release in $(RELEASES); do \
		echo "Slurm of $$release"; \
		root=$(abspath $(ROOTS))/$$release; [ "$$release" != $(OWN) ] || root=; \
		SLURMBRIDGE_TEST_ROOT=$$root $(COMPAT) || exit; \
	done

lint: $(LINT) ## static checks: who may import whom, style, scripts
	@contrib/install-deps --lint
	$(LINT) run
	@! grep -rl --include='*.go' '^import "C"' . | grep -v '^./gpuprof/nvml/' || \
		{ echo 'cgo belongs in gpuprof/nvml only'; exit 1; }
	shellcheck $(SCRIPTS)
	luacheck --std lua51 --no-color contrib/job_submit.lua

lint-ansible: ## ansible-lint over contrib/ansible
	@contrib/install-deps --ansible
	ansible-lint --offline contrib/ansible/slurmbridge.yml contrib/ansible/roles/slurmbridge

fmt: $(LINT) ## format the code
	$(LINT) fmt

# Each tool has a go.mod of its own, so that the project's stays its own.
$(LINT): .ci/lint/go.mod
$(NFPM): .ci/nfpm/go.mod
$(SBOM): .ci/sbom/go.mod
$(LINT) $(NFPM) $(SBOM):
	@$(QUIETLY) 'building $(@F) (minutes, once)' $(GO) build -C $(<D) -o $(@D)/ tool
	@touch $@

# The packages whose code or tests run goroutines: nothing races in the others.
RACE     = $$(grep -rlE --include='*.go' '(^|[[:space:]])go (func|[A-Za-z.]+\()|\.Go\(|"sync' . | xargs -n 1 dirname | $(PARTED))

race: build ## unit tests with the race detector, without daemons (five minutes; PART=1/2: half of the packages)
	CGO_ENABLED=1 $(GO) test -race -short -vet=off -count=1 -p 2 -timeout 20m $(if $(filter ./...,$(PKGS)),$(RACE),$(PKGS))

fuzz: build ## each fuzz target for ten seconds, two at a time (FUZZ=1m; five minutes; PART=1/2)
	@grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | $(PARTED) | xargs -P 2 -I PACKAGE contrib/fuzz PACKAGE $(or $(FUZZ),10s)

bench: ## benchmarks
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m $(PKGS)

# Drawn clusters run on this machine's Slurm, or on that of RELEASES where they are given.
GIVEN    = $(if $(filter command environment,$(firstword $(origin RELEASES))),$(RELEASES),$(OWN))
DRAWN    = --seeds $(SEEDS) --roots $(subst $(space),$(comma),$(foreach r,$(GIVEN),$(if $(filter $r,$(OWN)),own,$(abspath $(ROOTS))/$r)))
comma   := ,
soak: as-root build ## an hour of random jobs while daemons are killed, beside plain Slurm: what differs (SOAK=4m); SEEDS=1..200: small clusters of any shape instead, a minute each (RELEASES=forky, ROOTS=FOLDER)
	@$(call STAGE,soak) $(if $(SEEDS),$(DRAWN),--length $(or $(SOAK),1h)) $(ARGS)
	@[ "$(SEEDS)" ] || SLURMBRIDGE_SLOW=1 SLURMBRIDGE_REQUIRE_SLURM=1 $(TEST) -timeout 30m -run 'TestIdleJobIsTold' $(E2E)

# PACK packs the programs of one folder into another.
PACK     = $(QUIETLY) 'packing $1 into $2' env ARCH=$(ARCH) contrib/packaging/build $1 $(TOOLS) $2
BUILT_IN = $(QUIETLY) 'building for $(ARCH) into $1' $(MAKE) --no-print-directory packed BUILD=$1

# Linked and packed twice, in two folders: the same sources make the same bytes.
PACKAGES ?= $(BUILD)/packages
TWICE    := $(BUILD)/packages/.twice
packages: $(if $(BUILT),,deps) $(NFPM) $(SBOM) ## .deb and .rpm for controller and nodes, into build/packages/ (ARCH=arm64: into build/arm64/packages/)
	@contrib/install-deps $(if $(CROSS),--cross)
	@$(call BUILT_IN,$(BUILD))
	@$(call PACK,$(BUILD),$(PACKAGES))
	@$(call BUILT_IN,$(TWICE)/build)
	@$(call PACK,$(TWICE)/build,$(TWICE)/packages)
	@for f in $(PACKAGES)/*.deb $(PACKAGES)/*.rpm; do cmp "$$f" "$(TWICE)/packages/$${f##*/}" || exit 1; done
	@rm -rf $(TWICE)
	@ls -1 $(PACKAGES)/*.deb $(PACKAGES)/*.rpm

packages-check: packages ## install, upgrade, remove and purge the packages in a folder, run their programs (ARCH=arm64: emulated); lintian
	@contrib/install-deps --packages
	@export VERSION=999; $(call PACK,$(BUILD),$(BUILD)/newer)
	contrib/packaging/check $(PACKAGES) $(BUILD)/newer
	@rm -rf $(BUILD)/newer

release: ## packages of both architectures, bills of materials, notes and checksums, into build/release/
	@contrib/packaging/release build/release

# Two versions, of which the second is newer and says so: what is upgraded from and to.
NEWER   := $(BUILD)/acceptance/newer
acceptance: as-root build $(NFPM) $(SBOM) ## the commands of README.md and contrib/doc on two booted Debians (RELEASE=trixie or forky, ARGS=--keep; ARGS=--playbook: the Ansible role only; 25 minutes)
	@contrib/install-deps --acceptance
	@$(call PACK,$(BUILD),$(BUILD)/acceptance/old)
	@$(MAKE) --no-print-directory build BUILD=$(NEWER) VERSION=$(VERSION)-newer
	@export VERSION=999; $(call PACK,$(NEWER),$(BUILD)/acceptance/new)
	@contrib/mkroot --boot $(or $(RELEASE),bookworm) $(CURDIR)/.cache/acceptance/$(or $(RELEASE),bookworm)
	@unshare --mount --pid --net --ipc --kill-child contrib/testbed/acceptance/acceptance $(or $(RELEASE),bookworm) $(ARGS)

clean: ## remove build/
	rm -rf $(BUILD)
