"""Resource models, shared by the drivers: individual and grouped devices over a node's resources."""
