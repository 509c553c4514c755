# `make demo` and `make test` need nothing but root on Debian 12 or 13: `setup` brings the rest.
.PHONY: demo test setup lint clean

demo: setup
	.venv/bin/python -m tools.demo

# Four files at a time, as the long ones mostly wait for a process; the tests of one file share a lab or an agent.
# A test whose time is over fails; if it can't be ended, as a thread that never returns is waited for, then all stacks are
# printed and its process ends.  600 s are the longest time that a test has.
# Modules are compiled first, as tests start hundreds of processes, which may not write bytecode (PYTHONDONTWRITEBYTECODE).
test: setup
	.venv/bin/python -m compileall -q nftproxy conformance
	.venv/bin/python -m pytest --numprocesses 4 --dist loadfile --max-worker-restart 1 \
		-o faulthandler_timeout=700 -o faulthandler_exit_on_timeout=true

lint: setup
	.venv/bin/tox run -e lint

setup:
	@.ci/setup

clean:
	rm -rf .venv .tox .trees dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage*
	find nftproxy conformance tests tools -name __pycache__ -prune -exec rm -rf {} +
