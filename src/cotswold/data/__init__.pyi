import cotswold.api.connecting_data as connecting_data

from .augment import Augmentation as Augmentation
from .dataset import StoreDataset as StoreDataset
from .labelling import Labelling as Labelling
from .making import Maker as Maker
from .making import keys as keys
from .opening import open_asked as open_asked
from .opening import open_samples as open_samples
from .opening import open_source as open_source
from .opening import open_vectors as open_vectors
from .picture import BrokenPictureError as BrokenPictureError
from .preparation import Preparation as Preparation
from .preparation import Transform as Transform
from .preparing import Summary as Summary
from .preparing import prepare as prepare
from .reader import Reader as Reader
from .reader import shuffle_bytes as shuffle_bytes
from .source import Source as Source
from .store import Store as Store
from .streaming import SampleStream as SampleStream
from .streaming import stream as stream
from .synthetic import write_demo as write_demo
from .transforms import AnyPreparation as AnyPreparation
from .transforms import AnyTransform as AnyTransform
from .transforms import differing as differing
from .transforms import of_pictures as of_pictures
from .transforms import transform_from_state as transform_from_state
from .vector_preparation import VectorPreparation as VectorPreparation
from .vector_preparation import VectorTransform as VectorTransform
from .vectors import VectorArray as VectorArray
from .vectors import VectorSource as VectorSource
from .verifying import verify_store as verify_store
from .whiteness import Whiteness as Whiteness

connect = connecting_data.connect_data

__all__ = [
    "AnyPreparation",
    "AnyTransform",
    "Augmentation",
    "BrokenPictureError",
    "Labelling",
    "Maker",
    "Preparation",
    "Reader",
    "SampleStream",
    "Source",
    "Store",
    "StoreDataset",
    "Summary",
    "Transform",
    "VectorArray",
    "VectorPreparation",
    "VectorSource",
    "VectorTransform",
    "Whiteness",
    "differing",
    "keys",
    "of_pictures",
    "open_asked",
    "open_samples",
    "open_source",
    "open_vectors",
    "prepare",
    "shuffle_bytes",
    "stream",
    "transform_from_state",
    "verify_store",
    "write_demo",
]
