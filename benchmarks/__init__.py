"""Measure enqueueing and the worker side by side with Celery and Dramatiq: python -m benchmarks."""
