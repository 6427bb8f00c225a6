"""The `hf-diversed` command."""

try:
    from hf_diversed.cli.main import app
except ModuleNotFoundError as error:  # a base install does not include the terminal packages
    raise SystemExit(f"the command line needs {error.name}: pip install 'hf-diversed[demo]'") from error


__all__ = ["app"]
