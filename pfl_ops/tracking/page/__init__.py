"""MLflow's own page on the local store.

ui         its server, and links to its newest pages
page_app   short addresses in front of it
short      these addresses: /study/NAME, /experiment/NAME, /run/ID
"""
