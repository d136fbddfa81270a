"""allroads: a small and a large language model served as one, routed token by token.

Imports point downwards only: cli -> slm, llm, router, gateway -> policies -> engine, mesh.
"""

__version__ = "0.1.0"
