import cotswold.api.servers.data_client as connecting_data

from .augment import Augmentation as Augmentation
from .datasets.demo import write_demo as write_demo
from .formats.image import BrokenImageError as BrokenImageError
from .loading.batching import BatchBuilder as BatchBuilder
from .loading.batching import keys as keys
from .loading.dataset import StoreDataset as StoreDataset
from .loading.hub import HubDataset as HubDataset
from .loading.hub import HubStream as HubStream
from .loading.hub import from_hub as from_hub
from .loading.reader import Reader as Reader
from .loading.reader import shuffle_bytes as shuffle_bytes
from .loading.streaming import SampleStream as SampleStream
from .loading.streaming import stream as stream
from .preprocessing import AnyPreparation as AnyPreparation
from .preprocessing import AnyTransform as AnyTransform
from .preprocessing import as_image_transform as as_image_transform
from .preprocessing import differing_fields as differing_fields
from .preprocessing import transform_from_state as transform_from_state
from .preprocessing.images import Preparation as Preparation
from .preprocessing.images import Transform as Transform
from .preprocessing.table_schema import TableSchema as TableSchema
from .preprocessing.vectors import VectorPreparation as VectorPreparation
from .preprocessing.vectors import VectorTransform as VectorTransform
from .preprocessing.whiteness import Whiteness as Whiteness
from .sources.base import Source as Source
from .sources.detect import open_evaluation_source as open_evaluation_source
from .sources.detect import open_samples as open_samples
from .sources.detect import open_source as open_source
from .sources.detect import open_vectors as open_vectors
from .sources.labels import LabelArray as LabelArray
from .sources.tables import TableSource as TableSource
from .sources.tables import table as table
from .sources.vectors import VectorArray as VectorArray
from .sources.vectors import VectorSource as VectorSource
from .store.prepare import Summary as Summary
from .store.prepare import prepare as prepare
from .store.store import Store as Store
from .store.verify import verify_store as verify_store

connect = connecting_data.connect_data

__all__ = [
    "AnyPreparation",
    "AnyTransform",
    "Augmentation",
    "BatchBuilder",
    "BrokenImageError",
    "HubDataset",
    "HubStream",
    "LabelArray",
    "Preparation",
    "Reader",
    "SampleStream",
    "Source",
    "Store",
    "StoreDataset",
    "Summary",
    "TableSchema",
    "TableSource",
    "Transform",
    "VectorArray",
    "VectorPreparation",
    "VectorSource",
    "VectorTransform",
    "Whiteness",
    "as_image_transform",
    "differing_fields",
    "from_hub",
    "keys",
    "open_evaluation_source",
    "open_samples",
    "open_source",
    "open_vectors",
    "prepare",
    "shuffle_bytes",
    "stream",
    "table",
    "transform_from_state",
    "verify_store",
    "write_demo",
]
