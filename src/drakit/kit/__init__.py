"""The reusable driver host: everything a DRA driver needs except its three verbs."""
