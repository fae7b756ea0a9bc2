"""Tables, ids, preprocessing, labels, and cutting one table for a simulation.

The modules are imported one by one (``from interlace.data.tables import read_table``), so that a
caller pays only for what it uses.
"""
