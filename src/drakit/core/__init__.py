"""Values every layer speaks in: CPU sets, quantities, the objects of ``resource.k8s.io``."""
