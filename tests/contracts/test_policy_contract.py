"""Every eviction policy that ships, against the policy contract."""

import pytest

from anaphora.core.policy import POLICIES, Policy
from anaphora.testing.policy_contract import PolicyContract


@pytest.mark.parametrize("policy_name", list(POLICIES))
class TestEveryPolicy(PolicyContract):
    @pytest.fixture(autouse=True)
    def _choose_policy(self, policy_name: str) -> None:
        self.policy_name = policy_name

    def make_policy(self) -> Policy:
        return POLICIES[self.policy_name]()
