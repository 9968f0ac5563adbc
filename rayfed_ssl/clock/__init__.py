"""Virtual time: devices of clients, policies of the server, and the schedule that follows from both before training.

Times are integers in nanoseconds. Nothing here is measured, and nothing depends on the machine.
"""
