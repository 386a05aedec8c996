"""Replay: reads logs, writes nothing but bundles and staging folders, through ports.

engine.py    folds a log to the as-of of each recorded pick and rebuilds its overlay
verify.py    asks each pick again and compares the bytes
explain.py   one pick as a document
"""
