"""What `JSONLLogger` and `CSVLogger` share: records as text, in a file that many may write to.

`cells` turns arrays into JSON, `rows` portions into columns of such cells, `gathered` puts rows in
the order of the program, `files` adds lines to a file, and `sink` is what both sinks are.
`table` reads and widens tables of comma-separated values.
"""
