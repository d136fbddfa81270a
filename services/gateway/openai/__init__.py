"""The REST API that any OpenAI client speaks: bodies in, JSON and event streams out. Knows no gRPC."""
