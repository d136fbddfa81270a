"""What each client is asked to do: `python -m bench.client_scripts.NAME URL` in that client's environment.

They import nothing of ours, for allroads is not installed there.
"""
