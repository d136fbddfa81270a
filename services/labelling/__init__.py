"""`allroads label`: two models and prompts become tokens labelled as R2R does (arXiv 2505.21600, section 3.2).

The large model answers, the small one reads along, the large one goes on from each token in which they differ, and a
judge says whether the difference matters. Everything runs on our engine; judges may ask other endpoints. What is
learned from the labels is not decided here.
"""
