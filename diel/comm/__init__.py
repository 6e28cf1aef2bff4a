"""Bytes between ranks: tags, polite waiting, mailboxes, communicators.

Nothing here knows what a group, a tuple or a sweep is.
"""
