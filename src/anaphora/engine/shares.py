"""From settings in bytes to shares of the pool in slots: what may be promised, and what tenants are entitled to."""

from anaphora.core.cache import RETENTION, CacheLimits
from anaphora.core.owner import Quotas
from anaphora.engine.settings import EngineSettings
from anaphora.errors import SettingsError


def cache_limits(settings: EngineSettings, *, num_slots: int, slot_bytes: int, longest: int) -> CacheLimits:
    """Divide a pool. At most what is left beside the longest request may be promised, so that promises stop nobody.

    Raises: SettingsError if the tenants' quotas are more than the pool, together or by themselves.
    """
    if settings.retention_bytes is None:
        wanted = num_slots // RETENTION
    else:
        wanted = settings.retention_bytes // slot_bytes
    quotas = Quotas(
        {tenant: size_bytes // slot_bytes for tenant, size_bytes in settings.tenant_quotas.items()},
        None if settings.default_quota_bytes is None else settings.default_quota_bytes // slot_bytes,
    )
    sizes_bytes = (*settings.tenant_quotas.values(), settings.default_quota_bytes or 0)
    if sum(sizes_bytes) > num_slots * slot_bytes:
        raise SettingsError(
            f"tenant_quotas and default_quota_bytes are {sum(sizes_bytes)} bytes together, the pool (kv_pool_bytes) "
            f"has {num_slots * slot_bytes}. Lower the quotas or enlarge the pool."
        )
    return CacheLimits(num_retainable=max(0, min(wanted, num_slots - longest)), quotas=quotas)
