"""How settings are read: YAML with lines, host ranges, merging, and what each mistake is told as."""
