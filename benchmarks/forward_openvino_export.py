"""Writes a model in transformers' format as OpenVINO's, weights and tokenizer. Runs where `optimum-intel` is installed.

python benchmarks/forward_openvino_export.py FOLDER NEW_FOLDER
"""

import sys

from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig

if __name__ == "__main__":
    main_export(
        model_name_or_path=sys.argv[1],
        output=sys.argv[2],
        task="text-generation-with-past",
        convert_tokenizer=True,  # the pipeline of OpenVINO GenAI does not start without one
        ov_config=OVConfig(dtype="bf16"),
    )
