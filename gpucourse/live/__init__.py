"""The live chart: it is given a sampler and knows no device. `watch` is in watching.py."""
