"""``dra-driver-cpu``: exclusive CPUs, as single devices or as amounts of a group."""
