"""The router service: turns batches of features into scores of the small model's proposals.

Scorers (R2R's classifier, CITER's network, Co-LLM's head), their checkpoints, and a gRPC server. Knows nothing
of requests or thresholds in force: those belong to the policies.
"""
