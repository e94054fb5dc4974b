"""cgroup files: paths of pods and containers, and safe reads and writes (v1, v2, cgroupfs, systemd)."""
