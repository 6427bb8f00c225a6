"""The vLLM plugin: verifiers inside vLLM's rejection samplers. See `docs/serving.md`."""
