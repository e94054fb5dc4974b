"""The allocator: kube-scheduler's search for devices that satisfy a claim."""
