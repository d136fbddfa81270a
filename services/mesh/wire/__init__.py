"""Generated from `protos/allroads/v1` by `scripts/protos`; only this docstring is written by hand."""
