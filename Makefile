# SPDX-License-Identifier: Apache-2.0
# A short front for meson. The first target that needs a Debian package installs it (as root).

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
PYTHON = /usr/bin/python3
NINJA = ninja -j $(JOBS)

.PHONY: build run check test test-vm test-packages bench interop fuzz lint release deb install uninstall clean

build: setup-build
	@tools/configure.sh build gcc
	@$(NINJA) -C build

# Starts boxd, runs a first command in a sandbox and keeps serving. BOXD_ARGS go to boxd.
run: setup-run build
	@$(PYTHON) tools/run.py $(BOXD_ARGS)

# Before a commit; less than a minute with a warm build.
check: setup-test setup-lint
	@JOBS=$(JOBS) tools/check.sh

test: setup-test build
	@JOBS=$(JOBS) tools/test.sh

test-vm: setup-test setup-vm build
	@status=0; tools/vm/run || status=$$?; \
	    $(PYTHON) tools/summary.py "vm:$$status:build/vm/junit.xml"

# The packages and the archives: built, then installed, upgraded, removed and purged.
test-packages: setup-test setup-vm setup-deb
	@JOBS=$(JOBS) tools/test-packages.sh

bench: setup-bench build
	@tools/bench

interop: setup-test setup-interop build
	@tools/interop.sh

fuzz: setup-test
	@JOBS=$(JOBS) tools/fuzz.sh

lint: setup-test setup-lint
	@JOBS=$(JOBS) tools/lint.sh

# The archives of a release in build/release, for any distribution, built twice and compared.
release: setup-build
	@JOBS=$(JOBS) tools/release.sh

# The Debian packages of HEAD in build/deb, for the release that this runs on, built twice and compared.
deb: setup-deb
	@JOBS=$(JOBS) tools/deb.sh

install: build
	@tools/install.sh "$(PREFIX)" "$(DESTDIR)"

uninstall:
	@tools/install.sh --uninstall "$(PREFIX)" "$(DESTDIR)"

clean:
	rm -rf build build-asan build-analyzer build-fuzz

.PHONY: setup-build setup-run setup-test setup-bench setup-interop setup-vm setup-deb setup-lint
setup-build:
	@tools/setup.sh build
setup-deb:
	@tools/setup.sh build deb
setup-run setup-test setup-bench setup-interop setup-vm setup-lint: setup-%:
	@tools/setup.sh build run $*
