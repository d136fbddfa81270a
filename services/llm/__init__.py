"""A larger tier: runs a model that homes visit with hand-offs, one token or more a visit."""
