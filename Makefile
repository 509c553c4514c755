# `make demo` and `make test` need nothing but root on Debian 12 or 13: `setup` brings the rest.
.PHONY: demo test setup lint clean

demo: setup
	.venv/bin/python -m tools.demo

# Three files at a time, as the long ones mostly wait for a process; the tests of one file share a lab or an agent.
test: setup
	.venv/bin/python -m pytest --numprocesses 3 --dist loadfile --max-worker-restart 1

lint: setup
	.venv/bin/tox run -e lint

setup:
	@.ci/setup

clean:
	rm -rf .venv .tox .trees dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage*
	find nftproxy tests tools -name __pycache__ -prune -exec rm -rf {} +
