from .certificates import Authority as Authority
from .certificates import Certificate as Certificate
from .etcd_hosts import EtcdHosts as EtcdHosts
from .etcd_hosts import EtcdPlan as EtcdPlan
from .hosts import Hosts as Hosts
from .hosts import Rate as Rate
from .hosts import Traffic as Traffic
from .hosts import why_not as why_not
from .machines import Machines as Machines
from .namespaces import remove_leftovers as remove_leftovers
from .processes import ProcessesContract as ProcessesContract
from .quota import CpuQuota as CpuQuota
from .quota import why_no_quota as why_no_quota
from .signals import is_running as is_running
from .signals import stopped as stopped
from .signals import wait_until as wait_until
from .small_disks import SmallDisk as SmallDisk
from .small_disks import why_no_disks as why_no_disks

__all__ = [
    "Authority",
    "Certificate",
    "CpuQuota",
    "EtcdHosts",
    "EtcdPlan",
    "Hosts",
    "Machines",
    "ProcessesContract",
    "Rate",
    "SmallDisk",
    "Traffic",
    "is_running",
    "remove_leftovers",
    "stopped",
    "wait_until",
    "why_no_disks",
    "why_no_quota",
    "why_not",
]
