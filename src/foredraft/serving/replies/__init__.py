"""What clients get back, in OpenAI form."""
