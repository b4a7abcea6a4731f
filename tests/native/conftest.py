"""The extension's own tests; the plain interpreter they compare with stands beside the model's tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "model"))

pytest.importorskip("foredraft_native", reason="foredraft-native is not installed")
