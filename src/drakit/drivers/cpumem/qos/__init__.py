"""Memory QoS: protection and limits for claims and requests, from the container up to ``kubepods``.

=============== ==================================================================================
``shares``      memory and hugepages of one prepared device
``planner``     pure: pods and policy in, ``{cgroup: {file: value}}`` out
``ownership``   the files that the kubelet writes, by its configuration; those are left alone
``podspec``     requests and limits of pods, from the API server
``record``      files that were set, with their original values, on disk
``writer``      writes the files of a plan, restores them, detects foreign writes
``usage``       memory and hugepages in use, by NUMA node
``reconciler``  all of it together, as the kit calls it
=============== ==================================================================================
"""
