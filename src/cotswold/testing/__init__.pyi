from .hosts import Hosts as Hosts
from .hosts import Rate as Rate
from .hosts import Traffic as Traffic
from .hosts import remove_leftovers as remove_leftovers
from .hosts import why_not as why_not
from .processes import ProcessesContract as ProcessesContract
from .quota import CpuQuota as CpuQuota
from .quota import why_no_quota as why_no_quota
from .signals import is_running as is_running
from .signals import stopped as stopped
from .signals import wait_until as wait_until

__all__ = [
    "CpuQuota",
    "Hosts",
    "ProcessesContract",
    "Rate",
    "Traffic",
    "is_running",
    "remove_leftovers",
    "stopped",
    "wait_until",
    "why_no_quota",
    "why_not",
]
