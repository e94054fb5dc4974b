"""Drivers that are broken on purpose, each violating one guarantee: a module changes drakit on import.

They run in the guest, before ``main`` of the real driver; ``test_node_driver.py`` shows that the test of
the guarantee detects each mutant.
"""
