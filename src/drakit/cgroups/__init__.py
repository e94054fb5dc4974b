"""The node's control groups: cgroup v1 and v2, with the cgroupfs and the systemd driver.

========== ====================================================================================
``paths``  cgroup paths of pods and containers: pod UID, container ID, QoS class, systemd slices
``files``  reads and writes that never follow a symbolic link and never create a file
``tree``   the mounted hierarchies: controllers, cpusets, all pods, whether processes are left
``values`` comparing what was written to a file with what the kernel keeps
========== ====================================================================================
"""
