"""On what nftproxy has run: docs/support.json has each run, and docs/support.md shows them.

`python -m tools.support packets` runs a subject where it is called and records the result.  `python -m tools.vm` calls
it on other kernels.  `subjects` has the commands, `results` the file, `page` the tables.
"""
