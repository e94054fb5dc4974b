"""Drivers broken on purpose, one promise each: a module here changes drakit when it is imported.

They run in the guest, in front of the real driver's ``main``; ``test_node_driver.py`` shows that the
promise's own test catches each.
"""
