import pytest

# Or a failing assertion of a suite would tell nothing.
pytest.register_assert_rewrite("tests.backends.contract", "tests.backends.worker_contract")
