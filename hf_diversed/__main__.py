"""`python -m hf_diversed` runs `hf-diversed`, for launchers that need a module: `accelerate launch -m hf_diversed`."""

from hf_diversed.cli import app


if __name__ == "__main__":
    app()
