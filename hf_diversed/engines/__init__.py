"""Engines, which run the draft and target models round by round, eagerly or compiled."""
