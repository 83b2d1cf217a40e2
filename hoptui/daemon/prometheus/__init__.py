"""The node's state as Prometheus metrics, and the HTTP endpoint that serves them."""
