"""The embedded pair and its router: small weights that were trained here, with model cards."""
