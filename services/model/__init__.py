"""What the services that run a model share: sampling and log-probabilities on the wire, description, start, stop."""
