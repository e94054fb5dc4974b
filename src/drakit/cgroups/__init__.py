"""The node's control groups: cgroup v1 and v2, with the cgroupfs and the systemd driver."""
