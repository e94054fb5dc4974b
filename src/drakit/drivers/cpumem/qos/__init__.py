"""Memory QoS: protection and limits for claims and requests, from the container up to ``kubepods``."""
