"""The command line: one module a verb, stdout is data, stderr talks."""
