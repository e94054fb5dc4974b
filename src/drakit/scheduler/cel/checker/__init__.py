"""CEL type checking, cost estimation and validation, as the API server does them."""
