"""How the two models of a pair are run, round by round."""
