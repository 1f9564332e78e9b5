"""For all tests: how long an example takes says nothing here, because the machine may be busy with other things."""

from hypothesis import settings

settings.register_profile("anaphora", deadline=None)
settings.load_profile("anaphora")
