"""What is made before serving: the embedded pair, labels of its tokens, and the router trained on them."""
