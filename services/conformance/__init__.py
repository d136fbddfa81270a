"""What every policy must pass: a running mesh against a slow reference that recomputes everything.

`allroads policy check` runs it. The reference and the checks know a policy by its interface alone, so that they
hold for any. What they ask of the mesh goes over its wire, as a gateway's requests do.
"""
