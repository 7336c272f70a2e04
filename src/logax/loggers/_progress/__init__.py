"""How far a program is, by its records.

leader    which of its keys says so
lanes     where the lanes of that key are
values    the last values that stand next to the bar
expected  how many of them are still to come
resting   bars that are through, and wait for those
"""
