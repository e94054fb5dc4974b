"""The reusable driver host: everything a DRA driver needs besides its three verbs."""
