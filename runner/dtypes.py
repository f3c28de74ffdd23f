"""The dtypes that can be asked for, by name."""

from __future__ import annotations

import ml_dtypes
import numpy as np

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
