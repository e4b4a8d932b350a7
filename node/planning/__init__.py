"""What a run will take before it is started: memory, bytes, time, loss, money. Pure functions; `p2ptrain plan` shows
them.

quantities.py      "20Mbit", "80ms", "7B" as numbers
model_shape.py     parameters, layers and widths, from a number, a byte-lm or a config.json
accelerators.py    what devices compute, hold and draw (accelerators.toml)
calibration.py     the same, measured here (`p2ptrain bench calibrate`)
payload_sizes.py   bytes of a round, by the codecs and strategies themselves
round_timing.py    seconds of a round, and what bounds it
device_memory.py   bytes on the device and in main memory
loss_penalties.py  what H, a codec, a graph and members cost in loss, as measured here (losses.toml)
forecast.py        all of it together, for one run
advice.py          which H, codec and strategy
run_settings_file.py, rehearsal.py, calibrated.py   the same run as settings, as commands, and for `p2ptrain simulate`
published_runs.py  the model against runs that others published (published.toml)
"""
