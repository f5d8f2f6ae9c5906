from .callbacks.runner import TrainingState as TrainingState
from .components import Components as Components
from .data.sample_spec import SampleSpec as SampleSpec
from .data.store_batches import ValidationBatches as ValidationBatches
from .data.store_batches import labelled_batches as labelled_batches
from .data.store_batches import training_maps as training_maps
from .data.stores import open_store as open_store
from .distributed import RankContext as RankContext
from .jobs.create import Resume as Resume
from .jobs.create import open_job as open_job
from .jobs.job import Job as Job
from .jobs.module_job import ModuleJob as ModuleJob
from .jobs.module_job import open_module_job as open_module_job
from .jobs.recipe_job import RecipeJob as RecipeJob
from .jobs.restore import Trained as Trained
from .jobs.restore import load_stacks as load_stacks
from .jobs.restore import random_stacks as random_stacks
from .jobs.restore import trained_layers as trained_layers
from .jobs.restore import trained_stacks as trained_stacks
from .jobs.restore import untrained_phases as untrained_phases
from .jobs.run_store import open_original_store as open_original_store
from .jobs.run_store import source_note as source_note
from .jobs.run_store import store_of as store_of
from .losses import loss_of as loss_of
from .models import LayerNetwork as LayerNetwork
from .models import build_layers as build_layers
from .models import build_stacks as build_stacks
from .models import network_tensors as network_tensors
from .strategies.assembly import batches_of as batches_of
from .strategies.assembly import layers_of as layers_of
from .strategies.assembly import make_trainer as make_trainer
from .strategies.base import Batch as Batch
from .strategies.base import Batches as Batches
from .strategies.base import Metrics as Metrics
from .strategies.base import Strategy as Strategy
from .strategies.build_stacks import stack_entry as stack_entry
from .strategies.phases import Phase as Phase
from .strategies.phases import planned as planned
from .strategies.registry import StrategyEntry as StrategyEntry
from .strategies.registry import TrainContext as TrainContext
from .strategies.stacks import StackStrategy as StackStrategy
from .trainers.base import Trainer as Trainer
from .trainers.sync import SyncTrainer as SyncTrainer

__all__ = [
    "Batch",
    "Batches",
    "Components",
    "Job",
    "LayerNetwork",
    "Metrics",
    "ModuleJob",
    "Phase",
    "RankContext",
    "RecipeJob",
    "Resume",
    "SampleSpec",
    "StackStrategy",
    "Strategy",
    "StrategyEntry",
    "SyncTrainer",
    "TrainContext",
    "Trained",
    "Trainer",
    "TrainingState",
    "ValidationBatches",
    "batches_of",
    "build_layers",
    "build_stacks",
    "labelled_batches",
    "layers_of",
    "load_stacks",
    "loss_of",
    "make_trainer",
    "network_tensors",
    "open_job",
    "open_module_job",
    "open_original_store",
    "open_store",
    "planned",
    "random_stacks",
    "source_note",
    "stack_entry",
    "store_of",
    "trained_layers",
    "trained_stacks",
    "training_maps",
    "untrained_phases",
]
