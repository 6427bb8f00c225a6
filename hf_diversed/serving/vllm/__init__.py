"""The plugin for vLLM: our law where its rejection samplers keep the target's. See `docs/serving.md`."""
