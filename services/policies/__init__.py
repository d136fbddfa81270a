"""Routing algorithms: which tier writes the next token, by `route`, `send` and `receive`.

Policies see requests and numbers, never sockets or models. One object serves all requests; what it needs
to remember of one it keeps in that request's `memory`.
"""
