from .job import Job as Job
from .job import StoreJob as StoreJob
from .modules import ModuleJob as ModuleJob
from .modules import open_module_job as open_module_job
from .networks import LayerNetwork as LayerNetwork
from .networks import build_layers as build_layers
from .networks import build_stacks as build_stacks
from .opening import Resume as Resume
from .opening import open_job as open_job
from .pictures import labelled_batches as labelled_batches
from .pictures import training_maps as training_maps
from .restore import Trained as Trained
from .restore import load_stacks as load_stacks
from .restore import not_begun as not_begun
from .restore import random_stacks as random_stacks
from .restore import trained_layers as trained_layers
from .restore import trained_stacks as trained_stacks
from .run_stores import kept_store as kept_store
from .run_stores import source_note as source_note
from .run_stores import store_of as store_of
from .sample_spec import SampleSpec as SampleSpec
from .stores import open_store as open_store

__all__ = [
    "Job",
    "LayerNetwork",
    "ModuleJob",
    "Resume",
    "SampleSpec",
    "StoreJob",
    "Trained",
    "build_layers",
    "build_stacks",
    "kept_store",
    "labelled_batches",
    "load_stacks",
    "not_begun",
    "open_job",
    "open_module_job",
    "open_store",
    "random_stacks",
    "source_note",
    "store_of",
    "trained_layers",
    "trained_stacks",
    "training_maps",
]
