"""``dra-driver-example``: simulated GPUs, a template for DRA drivers in Python."""
