"""What the services that run a model share: sampling parameters on the wire, description, start and stop."""
