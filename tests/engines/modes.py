"""The ways to run a call's rounds, as arguments of `generate`."""

from transformers import CompileConfig


# Traces as inductor would see it and runs the graph op by op: seconds where compiling takes a minute.
TRACED = {"cache_implementation": "static", "compile_config": CompileConfig(backend="eager", mode="default")}
STATIC = {"cache_implementation": "static", "disable_compile": True}
COMPILED = {"cache_implementation": "static", "compile_config": CompileConfig(mode="default")}
