"""The engine plane: what runs inside vLLM, beside it, and the pure rules that both use."""
