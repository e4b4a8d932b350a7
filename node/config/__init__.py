"""The configuration: sections, their sources, and mistakes in them said in one line."""
