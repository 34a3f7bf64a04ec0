"""Evenkeel keeps GPU training on an even keel."""

import gc
import os

__version__ = "0.1.0"

if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
    gc.disable()  # during the imports of a cold start: a tenth of their time. `runtime.wiring` enables it
