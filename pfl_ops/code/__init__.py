"""The code of methods, networks and partitions, ours and the user's, as digests that enter a run's hash.

digest       of a module and the modules beside it
notebook     of a class or function that a notebook's cells define
script       of the values that a script gives to its definitions
loaded       what Python has loaded, where it differs from its file
kept         what a definition keeps from the time when it was defined
pickles      digests of a notebook's values
definitions  syntax, functions and names of a definition
syntax       code as text, without its words
modules      where a module's source lies, and which modules are beside it
former       names and digests of former code that does the same
values       numbers and texts as one text each
"""
