"""What an LLM agent observes and steers: the verbs of the command line as values, and their MCP server."""
