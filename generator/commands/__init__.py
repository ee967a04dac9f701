"""The verbs of the command line, one module each, and what they share."""
