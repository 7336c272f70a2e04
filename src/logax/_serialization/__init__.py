"""How values rest in files, whatever the kind of file.

dtypes      types that files know, and the others as bits
structure   trees as JSON and back, without a class being named
errors      what goes wrong with files
"""
