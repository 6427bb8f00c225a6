"""Running a pair over prompts: what the command line, evaluation, benchmark, training and the Space share."""
