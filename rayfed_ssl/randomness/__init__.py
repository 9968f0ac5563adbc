"""What is random: seeds by use, round and participant, and draws that are the same on every device."""
