"""The site that `tox run -e docs` builds: the repository's own pages, with mkdocs (mkdocs.yml)."""
