"""The worker: it takes deliveries from a backend, runs their jobs and settles what came of them."""
