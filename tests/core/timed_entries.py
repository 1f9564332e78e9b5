"""Entries of policies that are known again after they were evicted, used at given times."""

from anaphora.testing.policy_contract import Entry


class Timed(Entry):
    """An entry that has its fingerprint by its name."""

    def __init__(self, name, parent=None, *, num_tokens=100):
        super().__init__(parent, num_tokens=num_tokens)
        self.name = name

    @property
    def fingerprint(self):
        return hash(self.name)


def use(policy, entry, time_s):
    if entry in policy:
        policy.withdraw(entry)
    entry.used_at = time_s
    policy.admit(entry)
