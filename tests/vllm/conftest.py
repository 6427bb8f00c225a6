"""Run by `make vllm`, in an environment with vLLM. Its warnings are not ours."""


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "default")
