"""Runs one model: sequences, paged KV, scheduling, forward passes, sampling.

Four primitives carry every routing method: extend, propose, truncate, pend / resume. Nothing here knows
of gRPC, policies or text. An engine belongs to one thread.
"""
