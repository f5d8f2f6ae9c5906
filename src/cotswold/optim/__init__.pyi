from .objective import Evaluation as Evaluation
from .objective import Objective as Objective
from .schedule import Schedule as Schedule
from .schedule import rate_at as rate_at
from .vectors import Combine as Combine
from .vectors import Command as Command
from .vectors import Dot as Dot
from .vectors import Drop as Drop
from .vectors import Multiply as Multiply
from .vectors import Vectors as Vectors

__all__ = [
    "Combine",
    "Command",
    "Dot",
    "Drop",
    "Evaluation",
    "Multiply",
    "Objective",
    "Schedule",
    "Vectors",
    "rate_at",
]
