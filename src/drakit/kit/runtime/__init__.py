"""The container runtime: NRI event handlers, desired resources, updates and drift."""
