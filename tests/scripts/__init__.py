"""The scripts that notebooks 07, 11 and a4 show: what they print is right, and a broken copy prints something else.

The notebooks start them as a reader does. Here they run in ranks of `launch`, which have torch imported already.
"""
