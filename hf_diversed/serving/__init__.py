"""Rules and heads inside serving engines, which keep their own loops: rules are reused, the loop never."""
