"""Memory QoS: what claims and requests protect, from the container up to ``kubepods``.

=============== ==================================================================================
``layout``      where a pod's cgroups are, and its QoS class, from what the runtime reports
``shares``      what one prepared device gives: memory, and pages by size
``planner``     pure: pods and policy in, ``{cgroup: {file: value}}`` out
``ownership``   which files are the kubelet's, by its configuration; those are left alone
``podspec``     what a pod of the API server requests and limits
``files``       reading and writing single cgroup files
``record``      what was set and what was there before, on disk
``keeping``     brings files in line with a plan, puts them back, notices foreign writes
``usage``       what is used, by NUMA node
``reconciler``     all of it together, as the kit calls it
=============== ==================================================================================
"""
