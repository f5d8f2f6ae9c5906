from .endpoint import Endpoint as Endpoint
from .frames import Buffer as Buffer
from .frames import Header as Header
from .frames import LossCause as LossCause
from .frames import Lost as Lost
from .frames import Message as Message
from .frames import Ready as Ready
from .multi_endpoint import MultiEndpoint as MultiEndpoint
from .peer import EndpointTraffic as EndpointTraffic
from .peers import Event as Event

__all__ = [
    "Buffer",
    "Endpoint",
    "EndpointTraffic",
    "Event",
    "Header",
    "LossCause",
    "Lost",
    "Message",
    "MultiEndpoint",
    "Ready",
]
