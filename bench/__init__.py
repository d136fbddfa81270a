"""Side-by-side measurements. Each runs as `python -m bench.NAME [--quick] [--json]`."""
