"""Whether others can dial this node, and what makes that possible: dial-back, port mapping, relays."""
