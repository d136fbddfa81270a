"""What is made of decision logs: reports of what a router did or would have done, comparisons of two, labels by people.

Reads files that a mesh wrote and never talks to one. What it reads is untrusted: ids and numbers are checked, and
names are escaped where they are shown.
"""
