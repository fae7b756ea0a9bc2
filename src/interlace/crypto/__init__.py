"""Additively homomorphic encryption: sums of numbers that only one party can read."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach(
    __name__,
    submod_attrs={
        "base": [
            "CapacityError",
            "Ciphertext",
            "PrivateKey",
            "PublicKey",
            "Rows",
            "Sums",
            "Vector",
            "Workload",
            "merge_small",
            "unmasked",
        ],
        "rlwe": ["capacity", "holds_product"],
        "schemes": [
            "SCHEMES",
            "Estimate",
            "Scheme",
            "agreed_schemes",
            "available",
            "choose",
            "generate",
            "read_public_key",
        ],
    },
)
