"""What services share: channels, servers, streams, tensor handles. Knows nothing of models or text."""
