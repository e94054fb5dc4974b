"""What kube-scheduler would do with devices: CEL, pools, the allocator and its explanation."""
