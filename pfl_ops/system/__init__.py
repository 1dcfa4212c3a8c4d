"""This machine: its processes, cores, memory and temporary folders. Nothing here knows what is computed.

child           child processes that end with their parent
hosting         an object in a process of its own, whose methods are called through a pipe
machine         processor, memory and load, as the system reports them
memory          memory that this process may still take, and what it took at most
cores           CPU cores that this process may use
control_groups  limits of containers, services and batch jobs
attributes      attributes of other packages, replaced for a while
allocator       freed memory, kept for the next round
collector       collections of cyclic garbage
scratch         temporary folders that do not stay
"""
