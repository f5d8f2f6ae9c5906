from .characters import classes as classes
from .japanese_set import JapaneseSet as JapaneseSet
from .making import make as make
from .plan import Request as Request
from .sheets import contact_sheet as contact_sheet

__all__ = ["JapaneseSet", "Request", "classes", "contact_sheet", "make"]
