"""Make any existing LLM agent better without changing its code."""

__version__ = "1.0.0"
