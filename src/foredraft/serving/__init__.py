"""OpenAI-compatible HTTP server: protocol to requests and back."""
