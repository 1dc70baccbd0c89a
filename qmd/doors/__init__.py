"""Doors: programs that translate other protocols to the control protocol.

A door is a client of the daemon in a process of its own: its crash, leak or flood affects neither
the daemon nor a message.
"""
