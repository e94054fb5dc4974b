"""``dra-driver-cpumem``: CPUs, memory and hugepages of a NUMA node in one claim."""
