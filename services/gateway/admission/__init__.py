"""Who may start, who waits, and who is sent away with a time to come back."""
