from .endpoint import Endpoint as Endpoint
from .frames import Buffer as Buffer
from .frames import End as End
from .frames import Header as Header
from .frames import Lost as Lost
from .frames import Message as Message
from .frames import Ready as Ready
from .multi_endpoint import Roads as Roads
from .peer import Traffic as Traffic
from .peers import Event as Event

__all__ = ["Buffer", "End", "Endpoint", "Event", "Header", "Lost", "Message", "Ready", "Roads", "Traffic"]
