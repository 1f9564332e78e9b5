"""Load on a server that speaks the OpenAI or the Anthropic API: workloads, arrivals, clocks, comparison.

material     real texts, tools and conversations, as files in `data/`
workloads    texts -> conversations, drawn with a seed; pure
cases        what is run, in which waves, and which targets it has
wires        requests and answers as each API spells them; pure
client       one request over HTTP, timed
drive        arrivals, waves, rounds; servers take turns
figures      percentiles, totals, ratios; pure
servers      our own server as a process
report       table, JSON, plot
show         all of it: what `anaphora bench load` calls
"""
