"""Names of the hidden states a drafter may ask a target for.

Boundary i, from 0 to the number of layers, is the residual stream that enters layer i, or leaves the last layer, before
any norm of that layer. transformers' `output_hidden_states[i]` says the same up to the last layer's input; its last
entry is `FINAL_NORM` here.
"""

FINAL_NORM = -1  # after the model's last norm: what its output layer reads
