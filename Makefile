# `make demo` and `make test` need nothing but root on Debian 12 or 13: `setup` brings the rest.
# Tests of what only developers use: tools/, the API server of the tests, and the kernel that packets are sent through.
# They run when these change (.ci/due).
TESTS_OF_TOOLS = tests/tools tests/conformance/apiserver tests/conformance/lab

.PHONY: demo test test-tools setup lint clean

demo: setup
	.venv/bin/python -m tools.demo

# A few files at a time, as the long ones mostly wait for a process; the tests of one file share a lab or an agent.
# A test whose time is over fails; if it can't be ended, as a thread that never returns is waited for, then all stacks are
# printed and its process ends.  600 s are the longest time that a test has.
PYTEST = .venv/bin/python -m pytest --dist loadfile --max-worker-restart 1 \
	-o faulthandler_timeout=700 -o faulthandler_exit_on_timeout=true

# Each of pytest's processes collects all tests, and tests start hundreds of processes.  With the modules compiled
# before, that takes half as long.  The tests themselves are compiled once, by pytest.
test test-tools: export PYTHONDONTWRITEBYTECODE =

test: setup
	.venv/bin/python -m compileall -q nftproxy conformance
	@[ -e tests/policy/__pycache__ ] || .venv/bin/python -m pytest --collect-only -qq $(TESTS_OF_TOOLS:%=--ignore=%) >/dev/null
	$(PYTEST) --numprocesses 4 -m "not slow and not style" $(TESTS_OF_TOOLS:%=--ignore=%)

test-tools: setup
	$(PYTEST) --numprocesses 2 $(TESTS_OF_TOOLS)

lint: setup
	.venv/bin/tox run -e lint

setup:
	@.ci/setup

clean:
	rm -rf .venv .tox .trees dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage*
	find nftproxy conformance tests tools -name __pycache__ -prune -exec rm -rf {} +
