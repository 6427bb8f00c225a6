"""Engines: they run draft and target model, round by round, eagerly or compiled."""
