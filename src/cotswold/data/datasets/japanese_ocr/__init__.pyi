from .characters import classes as classes
from .dataset import GeneratedDataset as GeneratedDataset
from .generate import make as make
from .japanese_set import JapaneseSet as JapaneseSet
from .plan import Request as Request
from .sheets import contact_sheet as contact_sheet
from .sheets import sheets_of as sheets_of

MANIFEST: str

__all__ = ["GeneratedDataset", "JapaneseSet", "Request", "classes", "contact_sheet", "make", "sheets_of"]
