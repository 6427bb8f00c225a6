"""Run by `make vllm`, in an environment with vLLM, whose warnings are not errors here."""


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "default")
