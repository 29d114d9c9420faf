"""A vLLM watched from outside: its metrics over HTTP, its KV events over ZMQ. For one without our plugin."""
