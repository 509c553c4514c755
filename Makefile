# `make demo` and `make test` need nothing but root on Debian 12 or 13: `setup` brings the rest.
.PHONY: demo test setup lint clean

demo: setup
	.venv/bin/python -m tools.demo

# Two at a time, as most wait for a kernel or a process; those of one file share a lab or an agent.
test: setup
	.venv/bin/python -m pytest --numprocesses 2 --dist loadfile

lint: setup
	.venv/bin/tox run -e lint

setup:
	@.ci/setup

clean:
	rm -rf .venv .tox .trees dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .coverage*
	find nftproxy tests tools -name __pycache__ -prune -exec rm -rf {} +
