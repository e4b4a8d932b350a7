"""Five clinics that train one model: the task, its settings and the commands are in docs/how-to/clinics.md."""
