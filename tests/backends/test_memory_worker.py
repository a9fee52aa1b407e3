from tests.backends.memory_contract import MemoryHooks
from tests.backends.worker_contract import WorkerContract


class TestWorkerOnMemory(MemoryHooks, WorkerContract):
    """Run the suite of producer and worker on the memory backend."""

    patience = 10.0
