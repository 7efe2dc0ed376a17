"""Stand-ins that make a lab host look like a GPU machine: its PCI tree, its driver, and the tools that read them.

They run inside the host, by its own Python with the standard library alone: the package is copied there as a whole,
under another name. So its modules import each other relatively and nothing else of the project.
"""
