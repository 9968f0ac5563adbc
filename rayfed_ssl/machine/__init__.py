"""What a run computes on: its processor, its threads and versions, its cores and memory."""
