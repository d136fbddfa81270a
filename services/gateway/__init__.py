"""Where clients come in: REST and gRPC over one engine of requests.

Only the gateway knows text. It validates, admits, streams and detokenises, and calls one service, the
small model's. Nothing here imports torch or transformers: a gateway starts in a second, and many may run.
"""
