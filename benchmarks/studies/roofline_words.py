"""What would be needed for the rest: a sentence per workload, written from its profile.

To be read again whenever the largest costs of docs/roofline.md change.
"""

from __future__ import annotations

NEEDED = {
    "hmc-small-1": "On one thread most of the floor is reached, half of it SiLU; on two the "
    "barriers of each leapfrog weigh as much as a layer: fewer of them, or an exponential of fewer "
    "operations.",
    "hmc-small-8": "Chains share nothing and the barriers are gone; the products of 8 inputs and "
    "of 1 output (lanes_columns) move more operands than they multiply: they would have to be "
    "done where SiLU has them in registers.",
    "hmc-deep-4": "The products by 50 x 50 weights and their gradients are all that is left: 50 "
    "units are tiles of 12 or 13, which load one operand for every two to three multiply-adds.",
    "hmc-synthreg": "120 rows fill 3.75 panels of 32, and the weights are put into tiles again in "
    "every leapfrog for these few (multiply_unpacked): smaller last panels, and products that read "
    "the weights as they lie.",
    "hmc-wide": "Products and weight gradients alone; more than this share needs tiles whose loads "
    "hide entirely behind the multiply-adds, as in hand-written assembly.",
    "bbb-seed": "Layers of 20 units are tiles of 10, too narrow to hide their loads, and "
    "every layer writes its panel to the first-level cache: two layers in one pass.",
    "mc-forward": "Layers of 20 units are tiles of 10, too narrow to hide their loads; two layers "
    "in one pass would keep the panel in registers.",
    "mc-dropout": "The products alone are near the peak; beside them the random words of the masks "
    "(mask_panel), of which a rate of 0.5 needs one bit of 32: more units per word would change "
    "the draws.",
    "sgld": "A batch of 128 rows is four panels: the weights are packed and moved, each with a "
    "normal, for these few rows only, and both threads meet at five barriers a step; fewer passes "
    "over the parameters.",
    "resnet20": "Convolutions of 16 to 64 channels (convolve_row) restart their sums at every "
    "place; a Winograd form would need fewer multiplies than are counted here.",
    "lenet5": "The first layer has one channel and six outputs, the largest has maps of 7 x 7, "
    "whose rims shorten the loops; kernels for whole small maps.",
    "cnn-lstm": "24 steps of the LSTM depend on each other, each with a product of few rows; "
    "the gradient of the embedding is scattered.",
    "reparam": "The system hands out fresh pages (the kernel): with `out=` into memory that is "
    "reused it would be the floor's business alone.",
    "normals": "Integer multiplies of Philox share their units with the polynomials; fewer rounds "
    "would be another generator.",
}
