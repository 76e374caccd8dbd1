"""How an agent speaks: each form has a prompt that explains it, a parser, and a writer.

A reply that cannot be understood raises `MalformedError` with a sentence for the agent; an
environment passes that on as its observation.
"""
