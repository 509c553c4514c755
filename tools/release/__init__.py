"""The artefacts of a version: `python -m tools.release`, as `tox run -e release`."""
