"""What `make bench` measures; every figure is a ratio, or stands beside a baseline."""
