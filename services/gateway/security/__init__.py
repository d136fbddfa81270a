"""Who may ask, and what a stranger may cost: API keys, and limits that hold before a request is known.

Keys are kept as hashes alone. Neither they nor what users write enters a log, a metric or an error.
"""
