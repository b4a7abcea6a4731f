"""Conversations to prompts, and tool calls out of texts."""
