"""Routed serving at the shapes of real pairs, with weights made up: `python -m bench.gpu`, `--memory` for tables.

What is measured is serving, not answers. Weights are random, so nothing that is written means anything; which tokens
the large model writes is drawn from (request, position), while the router's real forward pass still runs and is still
waited for. Everything else is the mesh as users start it.
"""
