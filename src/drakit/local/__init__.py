"""Claims on this machine without a cluster, for ``drakit run``: commands start on their claims' CPUs."""
