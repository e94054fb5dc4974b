"""The CPU and memory driver: CPUs, memory and hugepages of a NUMA node, together in one claim."""
