"""The life of a ResourceClaim on the node: prepare, checkpoint, CDI spec, unprepare."""
