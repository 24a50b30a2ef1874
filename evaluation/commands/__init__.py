"""The commands that measure a twin: parse, call, print."""
