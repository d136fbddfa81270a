"""What routing is worth on given problems: measured against a mesh, and reckoned in money.

A run asks a mesh over REST and appends each answer to a file; every figure is derived from that file, so that a
report can be made again without asking. What evaluation knows of a mesh is what its API tells.
"""
