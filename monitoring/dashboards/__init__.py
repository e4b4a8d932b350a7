"""The dashboards as data: one file each, `model.py` says what they are made of, `render.py` makes Grafana's JSON."""

from dashboards import network, node, overview, quality, robustness
from dashboards.model import Dashboard

ALL: tuple[Dashboard, ...] = (
    overview.DASHBOARD,
    node.DASHBOARD,
    network.DASHBOARD,
    robustness.DASHBOARD,
    quality.DASHBOARD,
)
