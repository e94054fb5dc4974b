"""The CPU driver: exclusive CPUs, handed out one by one or as amounts of a group."""
