"""What is said to CUDA itself, and to torch about CUDA: nothing here knows of models, requests or services.

Every file can be imported where there is no GPU and no driver: a missing one is found when something is asked for,
and told as an error that says what to do.
"""
