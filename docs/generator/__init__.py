"""Builds the site: `make docs`, or ``python -m docs.generator``.

Knows: the pages of this repository, Cotswold's definitions, the site builder. Does not know: the look of the
site (mkdocs.yml, docs/assets).
"""
