"""The router service: turns batches of features into probabilities that a proposal diverges.

R2R's classifier, its checkpoints, the scorer over them, and a gRPC server. Knows nothing of requests or
thresholds in force: those belong to the policies.
"""
