"""The resource models and the programs made of them."""
