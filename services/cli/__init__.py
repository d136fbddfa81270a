"""The command line: `allroads up | serve | chat | config`.

A command is a thin file that resolves the configuration and calls what does the work. Nothing here
imports torch, so that `allroads --help` answers at once and a wrong set-up is refused within a second.
"""
