"""Data sets: images, text and synthetic sequences as batches of tensors."""

from skipway.data.dataset import Dataset
from skipway.data.info import DataInfo
from skipway.data.open import data_names, open_data

__all__ = ["DataInfo", "Dataset", "data_names", "open_data"]
