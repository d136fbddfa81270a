"""Models of a mesh's throughput: how long tiers wait for company, and how many requests may run at once.

Arithmetic alone: numbers come in, numbers go out. What knows of services, streams or clocks stays outside.
"""
