"""How each contestant is used. An opener takes the URL of a server and a load, and returns a check of a subject.

A check returns whether the request may pass, what remains and when it resets; None for what the contestant does not say.
"""
