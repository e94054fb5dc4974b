"""The part of the CRI that the node tier speaks; see ``cri.proto`` for how it is generated."""
