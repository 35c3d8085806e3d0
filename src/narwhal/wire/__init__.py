"""Message shapes: the OpenAI API towards clients, the vLLM dialect towards engines, SSE between.

Pure and synchronous: bytes in, values or bytes out. Errors are those of `narwhal.model.errors`.
"""
