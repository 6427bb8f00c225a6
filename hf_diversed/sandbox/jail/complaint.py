"""A readable line on how a source failed."""


def describe(error: BaseException, source: bytes, source_name: str) -> bytes:
    """Return name, line and message of an exception, whose own methods may fail."""
    name = type(error).__name__
    try:
        message = " ".join(str(error).split())
        line = _failing_line(error, source, source_name)
        parts = [part for part in (name, line, message if message not in line else "") if part]
        return ": ".join(parts).encode("utf-8", "replace")[:400]
    except BaseException:
        return name.encode("utf-8", "replace")[:400]


def own_frames(error: BaseException, source_name: str):
    """Return the source's part of the traceback; None for a syntax error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != source_name:
        trace = trace.tb_next
    return trace


def _failing_line(error: BaseException, source: bytes, source_name: str) -> str:
    number, trace = 0, own_frames(error, source_name)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == source_name:
            number = trace.tb_lineno
        trace = trace.tb_next
    lines = source.decode(errors="replace").splitlines()
    return f"line {number}: {lines[number - 1].strip()[:120]}" if 0 < number <= len(lines) else ""
