"""Why a prompt misses, and which layouts of prompts will miss. Pure: standard library and numpy alone."""
