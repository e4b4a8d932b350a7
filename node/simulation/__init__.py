"""The digital twin: real nodes on a virtual clock, over modelled links, from one scenario file (decision 0078)."""
