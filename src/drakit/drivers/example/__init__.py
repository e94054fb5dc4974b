"""``dra-driver-example``: simulated GPUs, the template for anyone's DRA driver in Python."""
