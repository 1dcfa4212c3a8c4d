"""The resources of jobs.

resource_request  the resources that a trial shall get: numbers, auto, or none
packing           the number of trials that run at once, by measurement
"""
