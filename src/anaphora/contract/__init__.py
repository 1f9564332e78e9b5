"""What the hosted APIs would count and charge for a request. Pure: integers, digests, and a clock that is handed in."""
