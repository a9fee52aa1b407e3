"""The memory backend: queues inside one process, and the reference for every other backend.

Bodies are kept encoded, so a job gets exactly what it would get over a wire. Nothing survives the
process.
"""

from django_jobq.backends.memory.backend import MemoryBackend, MemoryOptions
from django_jobq.backends.memory.clock import ManualClock
from django_jobq.backends.memory.state import MemoryDeadLetter

__all__ = ["ManualClock", "MemoryBackend", "MemoryDeadLetter", "MemoryOptions"]
