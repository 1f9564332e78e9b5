"""Anaphora: a self-hosted LLM server and library whose subject is the prompt cache."""
