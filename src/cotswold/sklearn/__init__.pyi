from .classifier import FullBatchClassifier as FullBatchClassifier
from .regressor import FullBatchRegressor as FullBatchRegressor
from .stack_features import StackFeatures as StackFeatures

__all__ = ["FullBatchClassifier", "FullBatchRegressor", "StackFeatures"]
