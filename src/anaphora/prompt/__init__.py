"""From a neutral request to the tokens a model sees, and from its answer back to tool calls. Pure."""
