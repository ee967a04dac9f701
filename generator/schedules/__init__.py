"""Every way of running a muGraph as a kernel: a room each, all of one shape (`schedule.py`)."""
