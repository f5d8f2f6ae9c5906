from .data.sample_spec import SampleSpec as SampleSpec
from .data.store_batches import labelled_batches as labelled_batches
from .data.store_batches import training_maps as training_maps
from .data.stores import open_store as open_store
from .jobs.create import Resume as Resume
from .jobs.create import open_job as open_job
from .jobs.job import Job as Job
from .jobs.job import RecipeJob as RecipeJob
from .jobs.module_job import ModuleJob as ModuleJob
from .jobs.module_job import open_module_job as open_module_job
from .jobs.restore import Trained as Trained
from .jobs.restore import load_stacks as load_stacks
from .jobs.restore import random_stacks as random_stacks
from .jobs.restore import trained_layers as trained_layers
from .jobs.restore import trained_stacks as trained_stacks
from .jobs.restore import untrained_phases as untrained_phases
from .jobs.run_store import open_original_store as open_original_store
from .jobs.run_store import source_note as source_note
from .jobs.run_store import store_of as store_of
from .models import LayerNetwork as LayerNetwork
from .models import build_layers as build_layers
from .models import build_stacks as build_stacks

__all__ = [
    "Job",
    "LayerNetwork",
    "ModuleJob",
    "RecipeJob",
    "Resume",
    "SampleSpec",
    "Trained",
    "build_layers",
    "build_stacks",
    "labelled_batches",
    "load_stacks",
    "open_job",
    "open_module_job",
    "open_original_store",
    "open_store",
    "random_stacks",
    "source_note",
    "store_of",
    "trained_layers",
    "trained_stacks",
    "training_maps",
    "untrained_phases",
]
